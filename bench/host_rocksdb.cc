// RocksDB for bench/host_replicas.h: reads with io_timeout, through the plug-in that is preloaded.
#include "host_replicas.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/file_system.h>
#include <rocksdb/table.h>

namespace {

rocksdb::Options options(bool may_refuse) {
  rocksdb::Options o;
  o.create_if_missing = true;
  o.compression = rocksdb::kNoCompression;
  o.disable_auto_compactions = true;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // the page cache is what is tested
  table.cache_index_and_filter_blocks = false;
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  if (may_refuse) {
    std::shared_ptr<rocksdb::FileSystem> fs;
    check(rocksdb::FileSystem::CreateFromString(rocksdb::ConfigOptions(), "plimsoll://", &fs));
    static std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(fs);
    o.env = env.get();
  }
  return o;
}

class RocksDb : public Store {
 public:
  explicit RocksDb(rocksdb::DB* db) : db_(db) {}
  ~RocksDb() override { delete db_; }

  bool get(const std::string& key, microseconds limit) override {
    rocksdb::ReadOptions o;
    o.io_timeout = limit;
    std::string value;
    const rocksdb::Status s = db_->Get(o, key, &value);
    if (s.IsBusy()) return false;
    check(s);
    return true;
  }

  void read_all() override {
    rocksdb::ReadOptions o;
    o.io_timeout = hours(1);
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(o));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
    }
    check(it->status());
  }

 private:
  rocksdb::DB* const db_;
};

}  // namespace

const char* const Store::tables = ".sst";
const off_t Store::least = 0;
const bool Store::maps = false;

std::unique_ptr<Store> Store::opened(const std::string& dir, bool may_refuse) {
  rocksdb::DB* db;
  check(rocksdb::DB::OpenForReadOnly(options(may_refuse), dir, &db));
  return std::unique_ptr<Store>(new RocksDb(db));
}

void Store::fill(const std::string& dir, uint64_t keys, const std::string& value) {
  rocksdb::DB* db;
  check(rocksdb::DB::Open(options(false), dir, &db));
  for (uint64_t i = 0; i < keys; i++) check(db->Put(rocksdb::WriteOptions(), key(i), value));
  check(db->Flush(rocksdb::FlushOptions()));
  check(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr));
  check(db->Close());
  delete db;
}
