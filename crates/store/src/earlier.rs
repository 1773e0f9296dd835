//! Settings changed live, as earlier programs kept them: a row for the fence, one for the layers' knobs, two fields of the cache's row.

use crate::db::setting;
use crate::meta::MetaError;
use crate::record::SettingsRecord;
use redb::ReadableTable;
use serde::Deserialize;

const FENCE_ROW: &str = "fence";
const KNOBS_ROW: &str = "knobs";

/// Number and length of time slots.
type Slots = (u32, u64);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fence {
    slots: u32,
    slot_ns: u64,
    configured: Slots,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knobs {
    set: Values,
    configured: Values,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Values {
    idle_ns: Option<u64>,
    logged_write_bytes: Option<u64>,
    fingerprints_percent: Option<u32>,
    /// Lower and upper threshold in nanoseconds, and windows between two looks.
    core_slack: Option<(u64, u64, u64)>,
}

/// The size fields of the cache's row, which has others.
#[derive(Deserialize)]
struct Cache {
    size_bytes: Option<u64>,
    configured_bytes: Option<u64>,
}

impl Values {
    fn keyed(&self) -> [(&'static str, Option<u64>); 6] {
        let slack = self.core_slack;
        [
            ("idle_us", self.idle_ns.map(|ns| ns / 1000)),
            ("logged_write_bytes", self.logged_write_bytes),
            ("fingerprints_percent", self.fingerprints_percent.map(u64::from)),
            ("core_slack_low_us", slack.map(|s| s.0 / 1000)),
            ("core_slack_high_us", slack.map(|s| s.1 / 1000)),
            ("core_poll_windows", slack.map(|s| s.2)),
        ]
    }
}

fn slots((slots, slot_ns): Slots) -> [(&'static str, Option<u64>); 2] {
    [("slots", Some(slots.into())), ("slot_us", Some(slot_ns / 1000))]
}

/// The settings of a store that has no row of today's for them; `None` if none was ever changed.
pub(crate) fn settings(
    rows: &impl ReadableTable<&'static str, &'static [u8]>,
) -> Result<Option<SettingsRecord>, MetaError> {
    let fence: Option<Fence> = setting(rows, FENCE_ROW)?;
    let knobs: Option<Knobs> = setting(rows, KNOBS_ROW)?;
    let cache: Option<Cache> = setting(rows, crate::db::CACHE_ROW)?;
    let mut record = SettingsRecord::default();
    let mut add = |set: &[(&str, Option<u64>)], configured: &[(&str, Option<u64>)]| {
        let present = |of: &[(&str, Option<u64>)]| -> Vec<(String, u64)> {
            of.iter().filter_map(|(key, value)| Some(((*key).to_owned(), (*value)?))).collect()
        };
        record.set.extend(present(set));
        record.configured.extend(present(configured));
    };
    if let Some(f) = fence {
        add(&slots((f.slots, f.slot_ns)), &slots(f.configured));
    }
    if let Some(k) = knobs {
        add(&k.set.keyed(), &k.configured.keyed());
    }
    if let Some(c) = cache.filter(|c| c.size_bytes.is_some()) {
        add(&[("cache_size_bytes", c.size_bytes)], &[("cache_size_bytes", c.configured_bytes)]);
    }
    Ok((record != SettingsRecord::default()).then_some(record))
}

/// Removes the rows once their settings are in today's row.
pub(crate) fn drop_rows(txn: &redb::WriteTransaction) -> Result<(), redb::Error> {
    let mut rows = txn.open_table(crate::db::SETTINGS)?;
    drop(rows.remove(FENCE_ROW)?);
    drop(rows.remove(KNOBS_ROW)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::{Database, ReadableDatabase, TableDefinition};

    const TABLE: TableDefinition<&str, &[u8]> = crate::db::SETTINGS;

    fn settings_of(rows: &[(&str, &str)]) -> Result<Option<SettingsRecord>, MetaError> {
        let db = Database::builder().create_with_backend(redb::backends::InMemoryBackend::new()).unwrap();
        let txn = db.begin_write().unwrap();
        {
            let mut table = txn.open_table(TABLE).unwrap();
            for (row, json) in rows {
                table.insert(row, json.as_bytes()).unwrap();
            }
        }
        txn.commit().unwrap();
        settings(&db.begin_read().unwrap().open_table(TABLE).unwrap())
    }

    #[test]
    fn rows_of_earlier_programs_are_understood() {
        let rows = [
            ("fence", r#"{"slots":8,"slot_ns":10000000,"configured":[4,20000000]}"#),
            ("knobs", r#"{"set":{"idle_ns":0,"core_slack":[1000,2000,3]},"configured":{"idle_ns":8000000}}"#),
            ("cache", r#"{"absent":false,"size_bytes":4096,"configured_bytes":null}"#),
        ];
        let record = settings_of(&rows).unwrap().unwrap();
        let as_json = serde_json::to_string(&record).unwrap();
        assert_eq!(
            as_json,
            r#"{"set":{"cache_size_bytes":4096,"core_poll_windows":3,"core_slack_high_us":2,"core_slack_low_us":1,"idle_us":0,"slot_us":10000,"slots":8},"configured":{"idle_us":8000,"slot_us":20000,"slots":4}}"#
        );
        let absent = settings_of(&[("cache", r#"{"absent":true,"size_bytes":null,"configured_bytes":null}"#)]);
        assert_eq!(absent.unwrap(), None);
        assert!(matches!(settings_of(&[("fence", "{")]), Err(MetaError::Corrupt { .. })));
    }
}
