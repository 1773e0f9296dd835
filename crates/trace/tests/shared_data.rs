//! The traces of `../shared/data`: every file reads to the number of requests its README states.

use plimsoll_trace::{Format, Op, ReadOptions, TraceReader};
use std::path::PathBuf;

/// The data folder, if there is one: `$PLIMSOLL_DATA`, else `../shared/data` beside the project.
fn data() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let dir = PathBuf::from(std::env::var_os("PLIMSOLL_DATA").unwrap_or_else(|| default.into()));
    let found = dir.join("block").is_dir();
    if !found {
        println!("ran without ../shared/data: {} isn't there", dir.display());
    }
    found.then_some(dir)
}

/// File, requests, reads in tenths of a per cent, devices: as the README's table says.
const BLOCK: [(&str, u64, u64, usize); 16] = [
    ("cloudphysics_vm", 113_872, 413, 1),
    ("hplajw_workstation", 44_519, 293, 2),
    ("hadoop_node10", 137_358, 994, 1),
    ("mobile_telegram", 251_879, 96, 1),
    ("mobile_youcut", 313_826, 870, 1),
    ("mobile_genshin", 91_317, 895, 1),
    ("mobile_pubg", 67_757, 749, 1),
    ("mobile_slideshow_install", 332_321, 0, 1),
    ("tencent_cbs_sample", 50_000, 490, 2_038),
    ("websearch_small", 24_783, 1_000, 6),
    ("msr_cut_1006", 10_000, 832, 1),
    ("tpcc_small", 6_999, 626, 16),
    ("ycsb_ext4", 9_886, 914, 1),
    ("ycsb_btrfs", 1_824, 713, 1),
    ("systor17_sample1998", 1_998, 764, 2),
    ("msr_hm_sample1000", 1_000, 508, 1),
];

#[test]
fn block_traces_read_to_their_stated_counts() {
    let Some(dir) = data() else { return };
    for (name, requests, reads, devices) in BLOCK {
        let path = dir.join(format!("block/{name}.csv.gz"));
        let mut r = TraceReader::open(&path, &ReadOptions::default()).unwrap();
        assert_eq!(r.format(), Format::Csv, "{name}");
        let (mut n, mut n_reads) = (0, 0);
        for record in r.by_ref() {
            n += 1;
            n_reads += u64::from(record.unwrap().op == Op::Read);
        }
        assert_eq!((n, (n_reads * 1_000 + n / 2) / n), (requests, reads), "{name}");
        assert_eq!(r.tables().devices.len(), devices, "{name}");
    }
}

#[test]
fn the_content_trace_reads_to_its_stated_counts() {
    let Some(dir) = data() else { return };
    let mut r = TraceReader::open(&dir.join("content/fiu_mail_cheetah_10k.csv.gz"), &ReadOptions::default()).unwrap();
    assert_eq!(r.format(), Format::FiuCsv);
    let records = r.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    let contents: std::collections::BTreeSet<_> = records.iter().map(|r| r.content.unwrap()).collect();
    let addresses: std::collections::BTreeSet<_> = records.iter().map(|r| r.offset).collect();
    let reads = records.iter().filter(|r| r.op == Op::Read).count();
    assert_eq!((records.len(), reads, addresses.len(), contents.len()), (9_998, 8_896, 9_202, 9_111));
}
