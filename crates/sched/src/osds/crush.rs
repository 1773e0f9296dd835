//! The cluster's CRUSH tree, and the buckets that a gateway's handles read from.
//!
//! A handle of the Ceph client reads from the OSDs near one bucket: a host, a rack, whatever the cluster's administrator made. A gateway can
//! afford few handles.

use super::map::OsdMap;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Stands for the host of an OSD that the tree doesn't have.
const HOST_UNKNOWN: &str = "?";

/// A CRUSH bucket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bucket {
    /// Its type, as `host` or `rack`.
    pub level: String,
    /// Its name, one of its type.
    pub name: String,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.level, self.name)
    }
}

/// Buckets of one type by name, with all OSDs that are in each, at any depth.
pub type Level = BTreeMap<String, BTreeSet<u32>>;

/// The tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Crush {
    /// For each type of buckets its name, and those buckets that have OSDs. Hosts are first, the root is last.
    pub levels: Vec<(String, Level)>,
}

impl Crush {
    /// Returns whether an OSD is in a bucket.
    pub fn has(&self, bucket: &Bucket, osd: u32) -> bool {
        let of = self.levels.iter().find(|(level, _)| *level == bucket.level).and_then(|(_, of)| of.get(&bucket.name));
        of.is_some_and(|osds| osds.contains(&osd))
    }

    /// The host of an OSD; `?` if the tree doesn't have it.
    pub fn host(&self, osd: u32) -> &str {
        let mut hosts = self.levels.first().into_iter().flat_map(|(_, hosts)| hosts);
        hosts.find(|(_, osds)| osds.contains(&osd)).map_or(HOST_UNKNOWN, |(host, _)| host)
    }

    /// At most `most` buckets of one type, those with the most replicas that a handle can read first. Of the types the one whose buckets
    /// have the most of them together, and the lowest if several have: a cluster of many hosts in few racks is read from by its racks.
    /// `level` is the type of handles that are open, if there are: of two types, one would be taken for the place where another reads.
    pub fn to_read_from(&self, map: &OsdMap, most: usize, level: Option<&str>) -> Vec<Bucket> {
        let mut best: (Option<usize>, Vec<Bucket>) = (None, Vec::new());
        for (level, buckets) in self.levels.iter().filter(|(l, _)| level.is_none_or(|level| level == l)) {
            let (replicas, chosen) = most_read(map, buckets, most);
            if best.0.is_none_or(|most| most < replicas) {
                let bucket = |name: &str| Bucket { level: level.clone(), name: name.into() };
                best = (Some(replicas), chosen.into_iter().map(bucket).collect());
            }
        }
        best.1
    }
}

/// The buckets of one type, and the number of the replicas. A handle reads from the first OSD of its bucket in the acting set, which is the
/// primary in the primary's bucket.
fn most_read<'a>(map: &OsdMap, buckets: &'a Level, most: usize) -> (usize, Vec<&'a str>) {
    let pairs = buckets.iter().flat_map(|(name, osds)| osds.iter().map(move |osd| (*osd, name.as_str())));
    let of: BTreeMap<u32, &str> = pairs.collect();
    let mut replicas: BTreeMap<&str, usize> = BTreeMap::new();
    for acting in &map.acting {
        let bucket = |place: &u16| of.get(&map.osds[usize::from(*place)].number).copied();
        let there: BTreeSet<&str> = acting.iter().filter_map(bucket).collect();
        let primary = acting.first().and_then(bucket);
        for name in there {
            *replicas.entry(name).or_default() += usize::from(Some(name) != primary);
        }
    }
    let mut chosen: Vec<(&str, usize)> = replicas.into_iter().collect();
    chosen.sort_by_key(|(_, replicas)| std::cmp::Reverse(*replicas));
    chosen.truncate(most);
    (chosen.iter().map(|(_, n)| n).sum(), chosen.into_iter().map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::osds::OsdPlace;

    fn bucket(level: &str, name: &str) -> Bucket {
        Bucket { level: level.into(), name: name.into() }
    }

    /// Hosts of one OSD each, two to a rack: OSDs 0 and 1 are in `r0`.
    fn racks(racks: u32) -> Crush {
        let hosts = (0..2 * racks).map(|n| (format!("h{n}"), BTreeSet::from([n]))).collect();
        let racks = (0..racks).map(|n| (format!("r{n}"), BTreeSet::from([2 * n, 2 * n + 1]))).collect();
        Crush { levels: vec![("host".into(), hosts), ("rack".into(), racks)] }
    }

    fn map_with(acting: &[&[u16]], osds: u32) -> OsdMap {
        let place = |number| OsdPlace { number, host: format!("h{number}"), port: None };
        let acting = acting.iter().map(|a| a.to_vec()).collect();
        OsdMap { acting, osds: (0..osds).map(place).collect(), ..OsdMap::default() }
    }

    #[test]
    fn handles_are_of_racks_where_those_reach_more_replicas() {
        let crush = racks(4);
        assert!(crush.has(&bucket("rack", "r1"), 3) && crush.has(&bucket("host", "h3"), 3));
        assert!(!crush.has(&bucket("rack", "r1"), 4) && crush.host(3) == "h3" && crush.host(99) == "?");
        // Each OSD is a primary, with replicas in the two next racks.
        let apart: [&[u16]; 8] =
            [&[0, 2, 4], &[1, 3, 5], &[2, 4, 6], &[3, 5, 7], &[4, 6, 0], &[5, 7, 1], &[6, 0, 2], &[7, 1, 3]];
        let map = map_with(&apart, 8);
        let names = |most| crush.to_read_from(&map, most, None).iter().map(Bucket::to_string).collect::<Vec<_>>();
        assert_eq!(names(4), ["rack r0", "rack r1", "rack r2", "rack r3"]);
        // With a handle for each host all replicas are reached, too: the finer ones.
        let hosts = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| format!("host h{n}"));
        assert_eq!(names(8), hosts);
        // Handles for hosts are open already: their type stays.
        assert_eq!(crush.to_read_from(&map, 2, Some("host")), ["h0", "h1"].map(|n| bucket("host", n)));
        // Copies that share a rack are reached by hosts alone: OSDs 1, 3 and 5 have them.
        let near = map_with(&[&[0, 1], &[2, 3], &[4, 5]], 8);
        assert_eq!(crush.to_read_from(&near, 3, None), ["h1", "h3", "h5"].map(|n| bucket("host", n)));
        assert!(Crush::default().to_read_from(&map, 8, None).is_empty());
    }
}
