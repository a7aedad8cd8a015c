// A socket by which the tokens of a decode step leave while the next step is computed.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "sampling.h"

namespace aio {

// Writes one frame per step, as `FrameWriter` of transport/framing.py would: a list of outputs with one token each. It never
// waits: what the socket does not take at once goes with a later step, or is left to the caller.
class TokenChannel {
 public:
  // A row of the batch, and its output without the token: `output_head` of protocol/token_channel.py.
  struct Row {
    int row;
    std::string head;
  };

  // Writes only while `*queued` equals `*written`: then no earlier output of the socket's reader waits to be written.
  TokenChannel(int socket, const std::atomic<int64_t>* queued, const std::atomic<int64_t>* written)
      : socket_(socket), queued_(queued), written_(written) {}

  std::vector<Row> rows;

  // The tokens of the next step, drawn[rows of the batch].
  void send(const Drawn* drawn, const std::vector<RowSettings>& settings);
  // Of how many steps, from the first one on, the tokens have left.
  int sent() const { return sent_; }

 private:
  void append(const Drawn* drawn, const std::vector<RowSettings>& settings);
  bool flush();

  int socket_;
  const std::atomic<int64_t>*queued_, *written_;
  std::string unsent_;  // whole frames
  int steps_ = 0, sent_ = 0;
  bool closed_ = false;
};

}  // namespace aio
