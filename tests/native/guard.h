// Memory between two pages that nobody may touch.
//
// A buffer ends where the second of them begins, or begins where the first one ends, so that a read
// beyond either end stops the program; and its address is as unaligned as its size makes it.

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <utility>

namespace guard {

enum Access { NONE, READ };

size_t page_size();
char *map_pages(size_t bytes);
void allow(char *pages, size_t bytes, Access access);
void unmap_pages(char *pages, size_t bytes);

#if defined(SUFFICE_GUARD_SLACK)
constexpr size_t SLACK = SUFFICE_GUARD_SLACK;  // bytes behind a buffer that may be read
#else
constexpr size_t SLACK = 0;
#endif
constexpr unsigned char FILL = 0xA5;  // of what is left of the pages

template <class T>
class Buffer {
 public:
  Buffer() = default;

  // `at_end`: the buffer ends where the second page begins, otherwise it begins behind the first.
  Buffer(int64_t count, bool at_end) : count_(count), bytes_(count * sizeof(T)) {
    const size_t page = page_size();
    inner_ = (bytes_ + SLACK + page - 1) / page * page;
    pages_ = map_pages(inner_ + 2 * page);
    memset(pages_ + page, FILL, inner_);
    allow(pages_, page, NONE);
    allow(pages_ + page + inner_, page, NONE);
    before_ = at_end ? inner_ - bytes_ - SLACK : 0;
    data_ = (T *)(pages_ + page + before_);
  }

  Buffer(Buffer &&other) { swap(other); }
  Buffer &operator=(Buffer &&other) {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (pages_) unmap_pages(pages_, inner_ + 2 * page_size());
  }

  T *data() const { return data_; }
  int64_t size() const { return count_; }
  T &operator[](int64_t i) const { return data_[i]; }
  T *begin() const { return data_; }
  T *end() const { return data_ + count_; }

  // From here on a write stops the program.
  void freeze() {
    if (inner_) allow(pages_ + page_size(), inner_, READ);
  }

  // Whether the rest of the pages is as it was.
  bool intact() const {
    const unsigned char *inner = (const unsigned char *)pages_ + page_size();
    for (size_t i = 0; i < inner_; ++i)
      if ((i < before_ || i >= before_ + bytes_) && inner[i] != FILL) return false;
    return true;
  }

 private:
  void swap(Buffer &other) {
    std::swap(pages_, other.pages_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(bytes_, other.bytes_);
    std::swap(inner_, other.inner_);
    std::swap(before_, other.before_);
  }

  char *pages_ = nullptr;
  T *data_ = nullptr;
  int64_t count_ = 0;
  size_t bytes_ = 0, inner_ = 0, before_ = 0;
};

}  // namespace guard
