// How many threads the next step uses: fewer while other processes take processors of its threads.
//
// Threads of a step meet at hundreds of barriers. One that waits for a processor holds up all others for a time slice of
// the system, thousands of times as long as what it would compute; with one thread less, it is not waited for.
#pragma once

namespace aio {

// A pure function of the steps that were observed, so that it is tested without a clock.
class ThreadChoice {
 public:
  explicit ThreadChoice(int most) : most_(most), threads_(most) {}

  int threads() const { return threads_; }

  // A step of `threads()` threads took `seconds`, of which they waited for a processor for `lost`, summed over them.
  void observe(double seconds, double lost);

 private:
  void begin_window();

  // Waking a thread takes up to so many seconds where nothing else runs.
  static constexpr double kWaking = 200e-6;
  // A window is judged after so many steps and seconds: one interruption is no neighbour, and a neighbour on the same
  // processor interrupts every few milliseconds.
  static constexpr int kSteps = 3;
  static constexpr double kSeconds = 0.01;
  // Seconds of steps until one more thread is tried. They double each time that it was of no use.
  static constexpr double kShortestRest = 0.05, kLongestRest = 2.0;
  // Windows until it has to be of use: at first it may be on the processor of another thread, until the system moves it.
  static constexpr int kTries = 3;

  int most_;
  int threads_;
  int steps_ = 0;
  double seconds_ = 0, lost_ = 0;  // of the window
  double rest_ = kShortestRest, rested_ = 0;
  int tries_ = 0;  // windows left for the last thread added; 0: it stays
};

}  // namespace aio
