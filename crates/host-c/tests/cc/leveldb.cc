// usage: leveldb BUSY QUIET: two empty folders. Each read at BUSY's disk would take an hour, after the agent; QUIET's isn't watched.
// Its Env is integrations/leveldb's. Prints "ok" if all holds.
#include "plimsoll_env.h"

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using leveldb::Status;
using plimsoll::Deadline;
using plimsoll::IsBusy;
using namespace std::chrono_literals;

#define CHECK(what)                                                \
  do {                                                             \
    if (!(what)) {                                                 \
      fprintf(stderr, "line %d: not %s\n", __LINE__, #what);       \
      _exit(1);                                                    \
    }                                                              \
  } while (0)

#define CHECK_OK(status)                                                                \
  do {                                                                                  \
    const Status checked = (status);                                                    \
    if (!checked.ok()) {                                                                \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #status, checked.ToString().c_str()); \
      _exit(1);                                                                         \
    }                                                                                   \
  } while (0)

using Contents = std::map<std::string, std::string>;

static std::string key(uint64_t n) {
  char text[24];
  snprintf(text, sizeof text, "key%012llu", static_cast<unsigned long long>(n));
  return text;
}

static leveldb::Options options(leveldb::Env* env) {
  static leveldb::Cache* const none = leveldb::NewLRUCache(0);  // the page cache is what is tested
  static const leveldb::FilterPolicy* const bloom = leveldb::NewBloomFilterPolicy(10);
  leveldb::Options o;
  o.create_if_missing = true;
  o.compression = leveldb::kNoCompression;
  o.write_buffer_size = 256 << 10;
  o.max_file_size = 1 << 20;
  o.block_cache = none;
  o.filter_policy = bloom;
  o.env = env;
  return o;
}

static std::unique_ptr<leveldb::DB> opened(const leveldb::Options& o, const std::string& folder) {
  leveldb::DB* db = nullptr;
  CHECK_OK(leveldb::DB::Open(o, folder, &db));
  return std::unique_ptr<leveldb::DB>(db);
}

static std::vector<std::string> tables(const std::string& folder) {
  std::vector<std::string> found;
  DIR* d = opendir(folder.c_str());
  CHECK(d != nullptr);
  for (dirent* e; (e = readdir(d)) != nullptr;) {
    const std::string name = e->d_name;
    if (name.size() > 4 && name.substr(name.size() - 4) == ".ldb") {
      found.push_back(folder + "/" + name);
    }
  }
  closedir(d);
  std::sort(found.begin(), found.end());
  return found;
}

static void evict(const std::string& folder) {
  for (const auto& name : tables(folder)) {
    const int fd = open(name.c_str(), O_RDONLY);
    if (fd >= 0) {  // a compaction may have removed it
      fsync(fd);
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  }
}

// Writes the same to each folder: new keys, overwritten ones and removed ones.
static Contents fill(const std::vector<std::string>& folders, leveldb::Env* env, uint64_t keys) {
  Contents contents;
  for (const auto& folder : folders) {
    contents.clear();
    auto db = opened(options(env), folder);
    std::mt19937_64 rng(7);
    for (uint64_t i = 0; i < 2 * keys; i++) {
      const std::string k = key(rng() % keys);
      if (rng() % 10 == 0) {
        contents.erase(k);
        CHECK_OK(db->Delete(leveldb::WriteOptions(), k));
      } else {
        contents[k] = std::string(1000, static_cast<char>('a' + rng() % 26)) + std::to_string(i);
        CHECK_OK(db->Put(leveldb::WriteOptions(), k, contents[k]));
      }
    }
  }
  return contents;
}

static void check_equal(leveldb::DB* db, const Contents& contents, uint64_t keys) {
  auto expected = contents.begin();
  std::unique_ptr<leveldb::Iterator> it(db->NewIterator(leveldb::ReadOptions()));
  for (it->SeekToFirst(); it->Valid(); it->Next(), ++expected) {
    CHECK(expected != contents.end());
    CHECK(it->key().ToString() == expected->first && it->value().ToString() == expected->second);
  }
  CHECK_OK(it->status());
  CHECK(expected == contents.end());
  for (uint64_t i = 0; i < keys; i++) {
    std::string value;
    const Status s = db->Get(leveldb::ReadOptions(), key(i), &value);
    const auto found = contents.find(key(i));
    CHECK(found == contents.end() ? s.IsNotFound() : s.ok() && value == found->second);
  }
}

static Status get(leveldb::DB* db, const std::string& k, std::string* value = nullptr) {
  std::string ignored;
  return db->Get(leveldb::ReadOptions(), k, value == nullptr ? &ignored : value);
}

// The process has read all pages, so that they are refused once they are evicted.
static void read_all(leveldb::DB* db) {
  const Deadline deadline(1h);
  std::unique_ptr<leveldb::Iterator> it(db->NewIterator(leveldb::ReadOptions()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
  }
  CHECK_OK(it->status());
}

// Evicts and tries until it is refused. Nothing is before the agent is found, and pages of an earlier refusal may come in at any time.
template <typename Try>
static Status refused(const std::string& folder, Try attempt) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  for (;;) {
    evict(folder);
    const Status s = attempt();
    if (IsBusy(s)) {
      return s;
    }
    CHECK_OK(s);
    CHECK(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(2ms);
  }
}

static Status refused_get(leveldb::DB* db, const std::string& folder, const std::string& k, std::chrono::microseconds time = 10ms) {
  return refused(folder, [&] {
    const Deadline deadline(time);
    return get(db, k);
  });
}

static void late_reads_are_refused(leveldb::DB* db, const std::string& folder, const Contents& contents) {
  const std::string first = contents.begin()->first, last = contents.rbegin()->first;
  read_all(db);
  std::string value;
  std::chrono::microseconds wait{};
  const Status status = refused_get(db, folder, first);
  CHECK(IsBusy(status, &wait) && status.IsIOError() && wait > 1s);
  CHECK(status.ToString().find("IO error: plimsoll: busy: wait about ") == 0);
  // Without a deadline it's served; so is the last try under one.
  CHECK_OK(get(db, first, &value));
  CHECK(value == contents.begin()->second);
  evict(folder);
  {
    const Deadline deadline(10ms);
    const Deadline none;
    CHECK_OK(get(db, last, &value));
    CHECK(value == contents.rbegin()->second);
  }
  // Pages in memory are served, also after the deadline's end.
  for (const auto time : {10'000us, 0us, -5us, std::chrono::microseconds::min()}) {
    const Deadline deadline(time);
    CHECK_OK(get(db, last));
  }
  for (const auto time : {std::chrono::microseconds::max(), std::chrono::microseconds(24h)}) {
    evict(folder);
    const Deadline deadline(time);
    CHECK_OK(get(db, first));
  }
  // One refusal is the whole request's.
  refused(folder, [&] {
    CHECK_OK(get(db, last));
    const Deadline deadline(10ms);
    const Status s = get(db, first);
    if (IsBusy(s)) {
      CHECK(IsBusy(get(db, last)));
      const Deadline inner(10ms);
      CHECK_OK(get(db, last));
    }
    return s;
  });
  // A deadline is its thread's.
  refused(folder, [&] {
    const Deadline deadline(10ms);
    const Status s = get(db, first);
    std::thread([&] { CHECK_OK(get(db, last)); }).join();
    return s;
  });
  // An iterator goes on after a refusal; its status keeps it.
  refused(folder, [&] {
    const Deadline deadline(10ms);
    std::unique_ptr<leveldb::Iterator> it(db->NewIterator(leveldb::ReadOptions()));
    it->SeekToFirst();
    CHECK(IsBusy(it->status()) || it->Valid());
    return it->status();
  });
  CHECK(!IsBusy(Status::OK()) && !IsBusy(Status::NotFound("plimsoll: busy")) && !IsBusy(Status::IOError("f", "plimsoll: busy: wait about 1 us")));
}

static void refused_gets_fall_to_another_replica(leveldb::DB* busy, leveldb::DB* quiet, const std::string& folder, const Contents& contents,
                                                 uint64_t keys) {
  std::mt19937_64 rng(11);
  int fell = 0;
  for (int i = 0; i < 100; i++) {
    evict(folder);
    const std::string k = key(rng() % keys);
    std::string value;
    Status s;
    {
      const Deadline deadline(10ms);
      s = get(busy, k, &value);
    }
    const auto found = contents.find(k);
    if (IsBusy(s)) {
      fell++;
      s = get(quiet, k, &value);
    }
    CHECK(found == contents.end() ? s.IsNotFound() : s.ok() && value == found->second);
  }
  CHECK(fell > 50);  // filters exclude a few keys, and pages of earlier refusals come in
}

static int descriptors_of_tables() {
  int n = 0;
  for (int fd = 0; fd < 1024; fd++) {
    char name[4096];
    const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof name);
    n += length > 0 && std::string(name, length).find(".ldb") != std::string::npos ? 1 : 0;
  }
  return n;
}

// The last page of a file, and whether it's in memory. Opens nothing when it's asked.
class End {
 public:
  explicit End(const std::string& name) {
    const int fd = open(name.c_str(), O_RDONLY);
    CHECK(fd >= 0);
    map_ = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, (lseek(fd, 0, SEEK_END) - 1) / 4096 * 4096);
    CHECK(map_ != MAP_FAILED);
    close(fd);
  }
  ~End() { munmap(map_, 4096); }
  End(const End&) = delete;
  bool is_in_memory() const {
    unsigned char is_in = 0;
    CHECK(mincore(map_, 4096, &is_in) == 0);
    return (is_in & 1) != 0;
  }

 private:
  void* map_;
};

// LevelDB closes a table whose opening is refused. Its pages come in nevertheless.
static void tables_come_in_after_a_refused_opening(leveldb::Env* env, const std::string& folder, const std::string& k) {
  for (int i = 0; i < 10; i++) {
    auto db = opened(options(env), folder);
    std::vector<std::unique_ptr<End>> ends;
    for (const auto& name : tables(folder)) {
      ends.emplace_back(new End(name));
    }
    // The first read of a table is its footer's.
    refused_get(db.get(), folder, k);
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (std::none_of(ends.begin(), ends.end(), [](const std::unique_ptr<End>& end) { return end->is_in_memory(); })) {
      CHECK(std::chrono::steady_clock::now() < limit);
      std::this_thread::sleep_for(2ms);
    }
  }
}

static uint64_t varint(const unsigned char*& at) {
  uint64_t n = 0;
  for (int shift = 0;; shift += 7) {
    n |= static_cast<uint64_t>(*at & 127) << shift;
    if ((*at++ & 128) == 0) {
      return n;
    }
  }
}

// A table whose filter isn't in memory, and whose index is, is opened with its filter: keys that it excludes need no read.
static void filters_are_not_lost(leveldb::Env* env, const std::string& folder) {
  leveldb::Options o = options(env);
  o.max_file_size = 64 << 20;
  o.write_buffer_size = 64 << 20;
  {
    auto db = opened(o, folder);
    for (uint64_t i = 0; i < 40'000; i++) {
      CHECK_OK(db->Put(leveldb::WriteOptions(), key(2 * i), std::string(60, 'v')));
    }
    db->CompactRange(nullptr, nullptr);
    read_all(db.get());
  }
  CHECK(tables(folder).size() == 1);
  auto db = opened(o, folder);
  refused_get(db.get(), folder, key(0));
  db.reset();
  db = opened(o, folder);
  evict(folder);
  const int fd = open(tables(folder)[0].c_str(), O_RDONLY);
  const off_t size = lseek(fd, 0, SEEK_END);
  unsigned char footer[48];
  CHECK(pread(fd, footer, sizeof footer, size - 48) == 48);
  const unsigned char* at = footer;
  const uint64_t metaindex = varint(at), metaindex_size = varint(at), index = varint(at);
  CHECK(index == metaindex + metaindex_size + 5);
  // Readahead may have brought in all.
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  std::vector<char> end(size - index);
  CHECK(pread(fd, end.data(), end.size(), index) == static_cast<ssize_t>(end.size()));
  {
    const Deadline deadline(10ms);
    CHECK(IsBusy(get(db.get(), key(20'000))));
  }
  int refused = 0;
  for (uint64_t i = 0; i < 50; i++) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    const Deadline deadline(10ms);
    const Status s = get(db.get(), key(2 * i * 700 + 1));
    CHECK(s.IsNotFound() || IsBusy(s));
    refused += IsBusy(s) ? 1 : 0;
  }
  close(fd);
  CHECK(refused < 10);  // one in a hundred is a false positive
}

// The Env's own calls, in LevelDB's order.
static void only_an_open_database_has_deadlines(leveldb::Env* env, const std::string& folder) {
  const std::string table = tables(folder)[0];
  leveldb::RandomAccessFile* made = nullptr;
  std::vector<char> scratch(8192);
  leveldb::Slice read;
  const auto attempt = [&](leveldb::RandomAccessFile* file) {
    const Deadline deadline(0us);
    const Status s = file->Read(4096, 4096, &read, scratch.data());
    CHECK(read.size() == (s.ok() ? 4096u : 0u));
    return s;
  };
  // No pages come in by themselves while nothing is refused.
  const auto check_served = [&](leveldb::RandomAccessFile* file) {
    for (int i = 0; i < 3; i++) {
      evict(folder);
      CHECK_OK(attempt(file));
    }
  };
  const auto check_refused = [&](leveldb::RandomAccessFile* file) { refused(folder, [&] { return attempt(file); }); };
  CHECK_OK(env->NewRandomAccessFile(table, &made));
  std::unique_ptr<leveldb::RandomAccessFile> file(made);
  check_served(file.get());  // closed: a repair
  file.reset();
  leveldb::FileLock* lock = nullptr;
  std::vector<std::string> names;
  CHECK_OK(env->LockFile(folder + "/LOCK", &lock));
  leveldb::FileLock* second = nullptr;
  CHECK(!env->LockFile(folder + "/LOCK", &second).ok());
  CHECK_OK(env->NewRandomAccessFile(table, &made));
  file.reset(made);
  check_served(file.get());
  CHECK_OK(env->GetChildren(folder, &names));
  check_served(file.get());  // recovery
  CHECK_OK(env->GetChildren(folder, &names));
  check_refused(file.get());
  CHECK_OK(env->GetChildren(folder, &names));
  check_refused(file.get());
  struct Job {
    std::function<void()> run;
    std::atomic<bool> is_done{false};
  } job;
  job.run = [&] { check_served(file.get()); };
  env->Schedule(
      [](void* of) {
        static_cast<Job*>(of)->run();
        static_cast<Job*>(of)->is_done = true;
      },
      &job);
  while (!job.is_done) {
    std::this_thread::sleep_for(1ms);
  }
  // A refused table's descriptor stays, but not after a table is removed, as it would keep the space, nor after the database is closed.
  const auto reopen = [&] {
    file.reset();
    CHECK_OK(env->NewRandomAccessFile(table, &made));
    file.reset(made);
  };
  reopen();
  CHECK(descriptors_of_tables() == 2);
  CHECK(!env->RemoveFile(folder + "/absent.ldb").ok());
  CHECK(descriptors_of_tables() == 1);
  for (int i = 0; i < 40; i++) {
    reopen();
    check_refused(file.get());
  }
  CHECK(descriptors_of_tables() == 17);
  CHECK_OK(env->UnlockFile(lock));
  CHECK(descriptors_of_tables() == 1);
  check_served(file.get());
  file.reset();
  CHECK(descriptors_of_tables() == 0);
  // Errors are the base's.
  CHECK(env->NewRandomAccessFile(folder + "/absent.ldb", &made).IsNotFound());
  CHECK_OK(env->NewRandomAccessFile(folder, &made));
  file.reset(made);
  const Status s = file->Read(0, 10, &read, scratch.data());
  CHECK(s.IsIOError() && !IsBusy(s) && s.ToString().find("directory") != std::string::npos);
}

// Opening, recovery, compactions and repair, with a deadline of a microsecond and pages that are evicted all the time.
static void only_reads_of_the_program_are_refused(const std::string& folder, Contents contents, uint64_t keys) {
  std::unique_ptr<leveldb::Env> env(plimsoll::NewDeadlineEnv(leveldb::Env::Default(), 1us));
  {
    auto db = opened(options(env.get()), folder);
    {
      const Deadline none;
      CHECK_OK(db->Put(leveldb::WriteOptions(), key(0), "in the log"));
    }
    contents[key(0)] = "in the log";
    // Reads without a Deadline have the Env's.
    refused(folder, [&] { return get(db.get(), contents.rbegin()->first); });
  }
  std::atomic<bool> is_over{false};
  std::thread evicting([&] {
    while (!is_over) {
      evict(folder);
      std::this_thread::sleep_for(2ms);
    }
  });
  {
    const Deadline deadline(0us);
    auto db = opened(options(env.get()), folder);
    for (uint64_t i = 0; i < keys; i += 7) {
      contents[key(i)] = std::to_string(i);
      CHECK_OK(db->Put(leveldb::WriteOptions(), key(i), contents[key(i)]));
    }
    db->CompactRange(nullptr, nullptr);
    // A failed compaction would fail all writes.
    CHECK_OK(db->Put(leveldb::WriteOptions(), key(1), "after the compaction"));
    contents[key(1)] = "after the compaction";
    const Deadline none;
    check_equal(db.get(), contents, keys);
  }
  {
    const Deadline deadline(0us);
    CHECK_OK(leveldb::RepairDB(folder, options(env.get())));
    auto db = opened(options(env.get()), folder);
    const Deadline none;
    check_equal(db.get(), contents, keys);
  }
  is_over = true;
  evicting.join();
}

// Tables beyond a fifth of the process's descriptors are opened for each read.
static void descriptors_are_left_to_the_program(const std::string& folder, const Contents& contents, uint64_t keys) {
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  rlimit low = limit;
  low.rlim_cur = 10;
  CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::unique_ptr<leveldb::Env> env(plimsoll::NewDeadlineEnv(leveldb::Env::Default()));
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  auto db = opened(options(env.get()), folder);
  CHECK(tables(folder).size() > 2);
  check_equal(db.get(), contents, keys);
  CHECK(descriptors_of_tables() == 2);
  evict(folder);
  read_all(db.get());
  refused_get(db.get(), folder, contents.begin()->first, 0us);
  db.reset();
  CHECK(descriptors_of_tables() == 0);
}

int main(int count, char** argument) {
  CHECK(count == 3);
  const std::string busy = std::string(argument[1]) + "/db", quiet = std::string(argument[2]) + "/db";
  const uint64_t keys = 4000;
  std::unique_ptr<leveldb::Env> env(plimsoll::NewDeadlineEnv(leveldb::Env::Default()));
  const Contents contents = fill({busy, quiet}, env.get(), keys);
  for (leveldb::Env* with : {env.get(), leveldb::Env::Default()}) {
    for (const auto& folder : {busy, quiet}) {
      auto db = opened(options(with), folder);
      check_equal(db.get(), contents, keys);
    }
  }
  {
    auto first = opened(options(env.get()), busy), second = opened(options(env.get()), quiet);
    first->CompactRange(nullptr, nullptr);  // all of it in tables
    late_reads_are_refused(first.get(), busy, contents);
    refused_gets_fall_to_another_replica(first.get(), second.get(), busy, contents, keys);
    // Refusals have changed nothing.
    check_equal(first.get(), contents, keys);
  }
  tables_come_in_after_a_refused_opening(env.get(), busy, contents.begin()->first);
  filters_are_not_lost(env.get(), std::string(argument[1]) + "/filters");
  only_an_open_database_has_deadlines(env.get(), busy);
  descriptors_are_left_to_the_program(busy, contents, keys);
  only_reads_of_the_program_are_refused(busy, contents, keys);
  puts("ok");
}
