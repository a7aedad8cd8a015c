#include "token_channel.h"

#include <cstring>

#if defined(__linux__)
#include <sys/ioctl.h>
#include <sys/socket.h>
#endif

namespace aio {

namespace {

// Linux takes so small a message of a Unix socket whole or not at all.
constexpr size_t kMostBytes = 32 << 10;
// A reader that is behind by so many bytes gets the tokens together.
constexpr int kMostUnread = 64 << 10;

// MessagePack, most significant byte first.
void put(std::string& out, uint64_t value, int bytes) {
  while (bytes--) out += char(value >> (8 * bytes));
}

void put_token(std::string& out, int token) {
  out += '\xce';
  put(out, uint64_t(token), 4);
}

void put_real(std::string& out, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  out += '\xcb';
  put(out, bits, 8);
}

void put_list(std::string& out, size_t items) {
  if (items < 16) return put(out, 0x90 | items, 1);
  out += '\xdc';
  put(out, items, 2);
}

void put_logprobs(std::string& out, const Drawn& drawn) {
  out += "\xa8logprobs";
  put_list(out, 1);
  put_list(out, 3);
  put_token(out, drawn.token);
  put_real(out, drawn.logprob);
  put_list(out, drawn.top.size());
  for (const auto& [token, logprob] : drawn.top) {
    put_list(out, 2);
    put_token(out, token);
    put_real(out, logprob);
  }
}

}  // namespace

void TokenChannel::append(const Drawn* drawn, const std::vector<RowSettings>& settings) {
  const size_t start = unsent_.size();
  put(unsent_, 0, 4);
  put_list(unsent_, rows.size());
  for (const Row& row : rows) {
    const Drawn& draw = drawn[row.row];
    unsent_ += row.head;
    put_list(unsent_, 1);
    put_token(unsent_, draw.token);
    if (settings[size_t(row.row)].logprobs >= 0) put_logprobs(unsent_, draw);
  }
  std::string length;
  put(length, unsent_.size() - start - 4, 4);
  unsent_.replace(start, 4, length);
}

void TokenChannel::send(const Drawn* drawn, const std::vector<RowSettings>& settings) {
  ++steps_;
  if (closed_) return;
  append(drawn, settings);
  closed_ = unsent_.size() > kMostBytes;
  if (closed_ || !flush()) return;
  unsent_.clear();
  sent_ = steps_;
}

#if defined(__linux__)
bool TokenChannel::flush() {
  if (queued_->load(std::memory_order_acquire) != written_->load(std::memory_order_acquire)) return false;
  int unread = 0;
  if (ioctl(socket_, TIOCOUTQ, &unread) != 0 || unread > kMostUnread) return false;
  const ssize_t taken = ::send(socket_, unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (taken > 0 && size_t(taken) < unsent_.size()) {
    // No kernel should: nothing may follow half a frame, so the connection ends.
    shutdown(socket_, SHUT_RDWR);
    closed_ = true;
  }
  return size_t(taken) == unsent_.size();
}
#else
bool TokenChannel::flush() { return false; }
#endif

}  // namespace aio
