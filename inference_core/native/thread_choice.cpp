#include "thread_choice.h"

#include <algorithm>

namespace aio {

void ThreadChoice::observe(double seconds, double lost) {
  ++steps_;
  seconds_ += seconds;
  lost_ += std::max(lost - kWaking * (threads_ - 1), 0.0);
  rested_ += seconds;
  if (steps_ >= kSteps && seconds_ >= kSeconds) {
    // As long as a step of one thread less, or longer, were its time that of the rest shared among fewer.
    const bool slow = threads_ > 1 && lost_ * threads_ > seconds_;
    begin_window();
    if (slow && tries_ > 1) {
      --tries_;
      return;
    }
    if (slow) {
      if (tries_) rest_ = std::min(2 * rest_, kLongestRest);
      --threads_;
      rested_ = 0;
    } else if (threads_ == most_) {
      rest_ = std::max(rest_ / 2, kShortestRest);
    }
    tries_ = 0;
  }
  if (threads_ < most_ && rested_ >= rest_) {
    ++threads_;
    tries_ = kTries;
    rested_ = 0;
    begin_window();
  }
}

void ThreadChoice::begin_window() {
  steps_ = 0;
  seconds_ = lost_ = 0;
}

}  // namespace aio
