// LevelDB for bench/host_replicas.h: gets with a Deadline, by integrations/leveldb's Env.
#include "host_replicas.h"
#include "plimsoll_env.h"

#include <leveldb/cache.h>
#include <leveldb/db.h>

namespace {

leveldb::Options options(bool may_refuse) {
  static leveldb::Env* const env = plimsoll::NewDeadlineEnv(leveldb::Env::Default());
  static leveldb::Cache* const none = leveldb::NewLRUCache(0);  // the page cache is what is tested
  leveldb::Options o;
  o.create_if_missing = true;
  o.compression = leveldb::kNoCompression;
  o.block_cache = none;
  if (may_refuse) o.env = env;
  return o;
}

class LevelDb : public Store {
 public:
  explicit LevelDb(leveldb::DB* db) : db_(db) {}
  ~LevelDb() override { delete db_; }

  bool get(const std::string& key, microseconds limit) override {
    const plimsoll::Deadline deadline(limit == microseconds::zero() ? microseconds::max() : limit);
    std::string value;
    const leveldb::Status s = db_->Get(leveldb::ReadOptions(), key, &value);
    if (plimsoll::IsBusy(s)) return false;
    check(s);
    return true;
  }

  void read_all() override {
    const plimsoll::Deadline deadline(hours(1));
    std::unique_ptr<leveldb::Iterator> it(db_->NewIterator(leveldb::ReadOptions()));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
    }
    check(it->status());
  }

 private:
  leveldb::DB* const db_;
};

}  // namespace

const char* const Store::tables = ".ldb";
const off_t Store::least = 0;
const bool Store::maps = true;

std::unique_ptr<Store> Store::opened(const std::string& dir, bool may_refuse) {
  leveldb::DB* db;
  check(leveldb::DB::Open(options(may_refuse), dir, &db));
  return std::unique_ptr<Store>(new LevelDb(db));
}

void Store::fill(const std::string& dir, uint64_t keys, const std::string& value) {
  leveldb::DB* db;
  check(leveldb::DB::Open(options(false), dir, &db));
  for (uint64_t i = 0; i < keys; i++) check(db->Put(leveldb::WriteOptions(), key(i), value));
  db->CompactRange(nullptr, nullptr);
  delete db;
}
