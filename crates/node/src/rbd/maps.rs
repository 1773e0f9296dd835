//! The cluster's maps: which OSDs have an image's objects, and in which CRUSH buckets they are.

use plimsoll_rbd::{Cluster, Error, Image};
use plimsoll_sched::osds::{Bucket, Crush, Level, OsdMap, OsdPlace, OsdsControl};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const STAT: &str = r#"{"prefix":"osd stat","format":"json"}"#;
const DUMP: &str = r#"{"prefix":"osd dump","format":"json"}"#;
const TREE: &str = r#"{"prefix":"osd tree","format":"json"}"#;
const GROUPS: &str = r#"{"prefix":"pg dump","dumpcontents":["pgs_brief"],"format":"json"}"#;

/// In the list of one pool's groups each has all its statistics. That takes this many times of the bytes that it takes in the brief list, which has all
/// pools' groups: about 3 KB, and about 110 bytes.
const WHOLE_TIMES: u64 = 32;

/// The command for the groups of a pool whose answer is the shorter one. The answers have the same form.
fn groups_command(dump: &Value, pool: i64) -> String {
    let pools = || dump["pools"].as_array().into_iter().flatten();
    let groups = |p: &Value| p["pg_num"].as_u64().unwrap_or(0);
    let all: u64 = pools().map(groups).fold(0, u64::saturating_add);
    let of_pool = pools().find(|p| p["pool"].as_i64() == Some(pool)).filter(|p| {
        let own = groups(p);
        own > 0 && own.saturating_mul(WHOLE_TIMES) < all
    });
    match of_pool.and_then(|p| p["pool_name"].as_str()) {
        Some(name) => json!({"prefix": "pg ls-by-pool", "poolstr": name, "format": "json"}).to_string(),
        None => GROUPS.into(),
    }
}

/// The `type` of a replicated pool in `osd dump`.
const REPLICATED: u64 = 1;

/// The type of the lowest CRUSH buckets.
const HOST: &str = "host";

/// The tree in the answer of `osd tree`.
fn crush_of(tree: &Value) -> Crush {
    let nodes = || tree["nodes"].as_array().into_iter().flatten();
    let by_id: BTreeMap<i64, &Value> = nodes().filter_map(|n| Some((n["id"].as_i64()?, n))).collect();
    let mut levels: BTreeMap<(u64, &str), Level> = BTreeMap::new();
    for node in nodes() {
        let facts = (node["type"].as_str(), node["type_id"].as_u64(), node["name"].as_str());
        if let (Some(level), Some(order), Some(name)) = facts {
            let osds = osds_below(node, &by_id);
            if !osds.is_empty() {
                levels.entry((order, level)).or_default().insert(name.to_string(), osds);
            }
        }
    }
    let from_hosts = levels.into_iter().skip_while(|((_, level), _)| *level != HOST);
    Crush { levels: from_hosts.map(|((_, level), buckets)| (level.to_string(), buckets)).collect() }
}

/// The OSDs below a node of the tree. Each node is looked at once, so that an answer with a circle ends.
fn osds_below(node: &Value, by_id: &BTreeMap<i64, &Value>) -> BTreeSet<u32> {
    let (mut osds, mut seen, mut next) = (BTreeSet::new(), BTreeSet::new(), vec![node]);
    while let Some(node) = next.pop() {
        for child in node["children"].as_array().into_iter().flatten().filter_map(Value::as_i64) {
            match u32::try_from(child) {
                Ok(osd) => drop(osds.insert(osd)),
                Err(_) if seen.insert(child) => next.extend(by_id.get(&child)),
                Err(_) => {}
            }
        }
    }
    osds
}

/// The reason for which there is no map of an image.
#[derive(Debug)]
pub(super) enum NoMap {
    /// The library's, the monitors' or the manager's error.
    Cluster(Error),
    /// An answer can't be decoded.
    NoJson { answer: &'static str, error: serde_json::Error },
    /// An answer lacks a fact.
    Lacks { answer: &'static str, fact: &'static str },
    /// The cluster's map has no such pool.
    NoPool(i64),
    /// The pool places objects in another way than this program knows.
    OtherHash(i64),
    /// Nothing serves this placement group now.
    NoOsd(String),
    /// The image isn't striped object by object.
    Striped,
    /// The pool ends.
    Ends,
}

impl fmt::Display for NoMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMap::Cluster(e) => e.fmt(f),
            NoMap::NoJson { answer, error } => write!(f, "{answer}: no JSON: {error}"),
            NoMap::Lacks { answer, fact } => write!(f, "{answer}: no {fact}"),
            NoMap::NoPool(pool) => write!(f, "osd dump: no pool {pool}"),
            NoMap::OtherHash(pool) => write!(f, "pool {pool} places objects by a hash that isn't rjenkins"),
            NoMap::NoOsd(group) => write!(f, "pg dump: group {group} has no OSD now"),
            NoMap::Striped => write!(f, "the image isn't striped object by object: all of it is taken for one OSD"),
            NoMap::Ends => write!(f, "the pool ends"),
        }
    }
}

impl std::error::Error for NoMap {}

impl From<Error> for NoMap {
    fn from(e: Error) -> NoMap {
        NoMap::Cluster(e)
    }
}

fn decode(bytes: &[u8], answer: &'static str) -> Result<Value, NoMap> {
    serde_json::from_slice(bytes).map_err(|error| NoMap::NoJson { answer, error })
}

fn numbers(v: &Value) -> impl Iterator<Item = u32> {
    // A place without OSD is 2147483647.
    let number = |n: &Value| n.as_u64().filter(|n| *n < i32::MAX as u64).map(|n| n as u32);
    v.as_array().into_iter().flatten().filter_map(number)
}

/// An image's place in its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Prefix of its objects' names.
    pub prefix: String,
    /// Number of the pool that has them.
    pub pool: i64,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Beginning of the device in the image.
    pub start: u64,
}

impl Layout {
    /// Asks for the place of an image, of a device that begins at `start` in it. `None` if it is striped in another way than object by object.
    ///
    /// # Errors
    /// The library's.
    pub fn of(image: &Image, start: u64) -> Result<Option<Layout>, Error> {
        let place = image.layout()?;
        Ok(place.map(|(prefix, pool, object_bytes)| Layout { prefix, pool, object_bytes, start }))
    }
}

/// The map of an image from the answers of `osd dump`, `pg dump` and `osd tree`. `handles` are the buckets that are read from by a handle of
/// their own, in the order of its ports.
///
/// # Errors
/// Facts that are missing in the answers.
pub(super) fn map_of(
    layout: &Layout,
    handles: &[Bucket],
    (dump, groups, crush): (&Value, &Value, &Crush),
) -> Result<OsdMap, NoMap> {
    let lacks = |fact| NoMap::Lacks { answer: "osd dump", fact };
    let epoch = dump["epoch"].as_u64().ok_or(lacks("epoch"))?;
    let mut pools = dump["pools"].as_array().into_iter().flatten();
    let pool = pools.find(|p| p["pool"].as_i64() == Some(layout.pool));
    let pool = pool.ok_or(NoMap::NoPool(layout.pool))?;
    if pool["object_hash"].as_u64() != Some(2) {
        return Err(NoMap::OtherHash(layout.pool));
    }
    // Ceph takes a read to another OSD than the primary in a replicated pool only: elsewhere an OSD has a part of the object.
    let handles = if pool["type"].as_u64() == Some(REPLICATED) { handles } else { &[] };
    let pg_num = pool["pg_num"].as_u64().filter(|n| (1..=1 << 20).contains(n)).ok_or(lacks("pg_num"))?;
    let mut osds: Vec<OsdPlace> = Vec::new();
    let place = |number: u32, osds: &mut Vec<OsdPlace>| {
        let at = osds.iter().position(|o| o.number == number);
        at.unwrap_or_else(|| {
            let port = handles.iter().position(|h| crush.has(h, number)).map(|at| at as u8 + 1);
            osds.push(OsdPlace { number, host: crush.host(number).into(), port });
            osds.len() - 1
        }) as u16
    };
    let mut acting = vec![Vec::new(); pg_num as usize];
    let prefix = format!("{}.", layout.pool);
    // Older clusters answer the list alone.
    let stats = groups.get("pg_stats").unwrap_or(groups);
    for group in stats.as_array().into_iter().flatten() {
        let id = group["pgid"].as_str().and_then(|id| id.strip_prefix(&prefix));
        let Some(at) = id.and_then(|id| usize::from_str_radix(id, 16).ok()).filter(|at| *at < acting.len()) else {
            continue;
        };
        let primary = group["acting_primary"].as_u64().map(|p| p as u32);
        let mut of: Vec<u32> = numbers(&group["acting"]).collect();
        of.sort_by_key(|osd| Some(*osd) != primary);
        acting[at] = of.into_iter().map(|osd| place(osd, &mut osds)).collect();
    }
    if let Some(at) = acting.iter().position(Vec::is_empty) {
        return Err(NoMap::NoOsd(format!("{prefix}{at:x}")));
    }
    let Layout { prefix, object_bytes, start, .. } = layout.clone();
    Ok(OsdMap { epoch, prefix, object_bytes, start, acting, osds })
}

/// Answers of a cluster, of one moment.
pub(super) struct Answers {
    dump: Value,
    groups: Value,
    crush: Crush,
}

impl Answers {
    /// Asks the monitors and the manager, for the groups of at least one pool.
    ///
    /// # Errors
    /// The monitors' or the manager's.
    pub fn ask(cluster: &Cluster, pool: i64) -> Result<Answers, NoMap> {
        let dump = decode(&cluster.ask_monitors(DUMP)?, "osd dump")?;
        let tree = decode(&cluster.ask_monitors(TREE)?, "osd tree")?;
        // The pool may have another name by now.
        let asked = cluster.ask_manager(&groups_command(&dump, pool));
        let groups = asked.or_else(|_| cluster.ask_manager(GROUPS))?;
        Ok(Answers { dump, groups: decode(&groups, "pg dump")?, crush: crush_of(&tree) })
    }

    /// The map of an image; see [`map_of`].
    ///
    /// # Errors
    /// Facts that are missing in the answers.
    pub fn map(&self, layout: &Layout, handles: &[Bucket]) -> Result<OsdMap, NoMap> {
        map_of(layout, handles, (&self.dump, &self.groups, &self.crush))
    }

    /// See [`Crush::to_read_from`].
    pub fn to_read_from(&self, map: &OsdMap, most: usize, level: Option<&str>) -> Vec<Bucket> {
        self.crush.to_read_from(map, most, level)
    }

    /// True if a pool has whole copies of its objects.
    pub fn is_replicated(&self, pool: i64) -> bool {
        let is_of = |p: &Value| p["pool"].as_i64() == Some(pool) && p["type"].as_u64() == Some(REPLICATED);
        self.dump["pools"].as_array().into_iter().flatten().any(is_of)
    }
}

/// The epoch of the cluster's map. `None` if the monitors don't tell it.
pub(super) fn epoch(cluster: &Cluster) -> Option<u64> {
    let stat = cluster.ask_monitors(STAT).ok()?;
    decode(&stat, "osd stat").ok()?["epoch"].as_u64()
}

/// The message for a map, after the one that was sent last. `None` if it says nothing new. Most epochs change nothing of an image: then the message has
/// the epoch alone.
pub(super) fn news(sent: &mut Option<OsdMap>, map: OsdMap) -> Option<OsdsControl> {
    if let Some(sent) = sent {
        let before = std::mem::replace(&mut sent.epoch, map.epoch);
        if *sent == map {
            return (before != map.epoch).then_some(OsdsControl::Epoch(map.epoch));
        }
    }
    *sent = Some(map.clone());
    Some(OsdsControl::Map(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Bucket {
        Bucket { level: HOST.into(), name: name.into() }
    }

    /// Answers as Ceph 16 gives them, cut down.
    #[test]
    fn a_map_is_made_of_the_clusters_answers() {
        let dump = json!({"epoch": 28, "pools": [
            {"pool": 1, "type": 1, "pg_num": 1, "object_hash": 2}, {"pool": 2, "type": 1, "pg_num": 2, "object_hash": 2}]});
        let groups = json!({"pg_ready": true, "pg_stats": [
            {"pgid": "2.1", "acting": [1, 2, 0], "acting_primary": 2},
            {"pgid": "1.0", "acting": [2, 0, 1], "acting_primary": 2},
            {"pgid": "2.0", "acting": [0, 2147483647u32], "acting_primary": 0}]});
        let tree = json!({"nodes": [
            {"id": -1, "name": "default", "type": "root", "type_id": 11, "children": [-3, -4]},
            {"id": -3, "name": "h0", "type": "host", "type_id": 1, "children": [0]},
            {"id": -4, "name": "h1", "type": "host", "type_id": 1, "children": [1, 2]},
            {"id": 0, "name": "osd.0", "type": "osd", "type_id": 0},
            {"id": -5, "name": "empty", "type": "host", "type_id": 1, "children": []}]});
        let crush = crush_of(&tree);
        let names =
            |(level, of): &(String, Level)| format!("{level}: {}", of.keys().cloned().collect::<Vec<_>>().join(" "));
        let levels: Vec<String> = crush.levels.iter().map(names).collect();
        assert_eq!(levels, ["host: h0 h1", "root: default"]);
        let hosts = |names: &[&str]| names.iter().map(|n| host(n)).collect::<Vec<_>>();
        let layout = Layout { prefix: "rbd_data.x".into(), pool: 2, object_bytes: 4 << 20, start: 7 };
        let map = map_of(&layout, &hosts(&["h1"]), (&dump, &groups, &crush)).unwrap();
        let number = |at: &u16| map.osds[usize::from(*at)].number;
        assert_eq!(
            map.acting.iter().map(|a| a.iter().map(number).collect()).collect::<Vec<Vec<u32>>>(),
            [vec![0], vec![2, 1, 0]]
        );
        let port = |n: u32| map.osds.iter().find(|o| o.number == n).unwrap().port;
        assert_eq!((port(0), port(1), port(2), map.epoch, map.start), (None, Some(1), Some(1), 28, 7));
        assert_eq!(crush.to_read_from(&map, 8, None), hosts(&["h0", "h1"]));
        assert_eq!(crush.to_read_from(&map, 1, None), hosts(&["h0"]));
        // Of an erasure-coded pool an OSD has a part of each object: no read can be steered.
        let mut coded = dump.clone();
        coded["pools"][1]["type"] = json!(3);
        let map = map_of(&layout, &hosts(&["h1"]), (&coded, &groups, &crush)).unwrap();
        assert!(map.osds.iter().all(|o| o.port.is_none()));
        let e = map_of(&Layout { pool: 3, ..layout.clone() }, &[], (&dump, &groups, &crush)).unwrap_err();
        assert_eq!(e.to_string(), "osd dump: no pool 3");
        let e = map_of(&layout, &[], (&dump, &json!({}), &crush)).unwrap_err();
        assert_eq!(e.to_string(), "pg dump: group 2.0 has no OSD now");
    }

    #[test]
    fn the_shorter_list_of_groups_is_asked_for() {
        let with = |own: u64, others: u64| {
            let pools = json!([{"pool": 1, "pg_num": others}, {"pool": 2, "pool_name": "rbd \"b\"", "pg_num": own}]);
            groups_command(&json!({"pools": pools}), 2)
        };
        assert_eq!(with(32, 992), GROUPS);
        let asked: Value = serde_json::from_str(&with(32, 993)).unwrap();
        assert_eq!(asked, json!({"prefix": "pg ls-by-pool", "poolstr": "rbd \"b\"", "format": "json"}));
        // A pool of which nothing is known: what is missing is named by whoever makes the map.
        assert!([with(0, 9), groups_command(&json!({}), 2)].iter().all(|asked| asked == GROUPS));
    }

    #[test]
    fn a_tree_with_a_circle_or_without_facts_is_read_to_an_end() {
        let circle = json!({"nodes": [
            {"id": -1, "name": "a", "type": "host", "type_id": 1, "children": [-1, -2, 0]},
            {"id": -2, "name": "b", "type": "host", "type_id": 1, "children": [-1, -7]},
            {"id": -3, "type": "rack"}, {}, {"id": "x", "children": 3}]});
        let crush = crush_of(&circle);
        assert!(crush.has(&host("a"), 0) && crush.has(&host("b"), 0));
        assert!(crush_of(&json!(null)).levels.is_empty());
    }

    #[test]
    fn only_what_is_new_of_a_map_is_sent() {
        let (mut sent, first) = (None, OsdMap { epoch: 1, ..OsdMap::default() });
        let mut news = |map: &OsdMap| news(&mut sent, map.clone());
        assert_eq!(news(&first), Some(OsdsControl::Map(first.clone())));
        assert!((0..5).all(|_| news(&first).is_none()));
        // A new epoch may concern other pools.
        let second = OsdMap { epoch: 2, ..first.clone() };
        assert_eq!((news(&second), news(&second)), (Some(OsdsControl::Epoch(2)), None));
        // The manager hears of new acting sets after the epoch has changed.
        let later = OsdMap { acting: vec![vec![0]], ..second };
        assert_eq!((news(&later), news(&later)), (Some(OsdsControl::Map(later.clone())), None));
    }
}
