//! The live client against servers that behave badly, each in its own way.

mod fake;

use fake::{Does, Fake, SIZE};
use plimsoll_base::Span;
use plimsoll_client::live::{
    Address, Ask, Blocking, LinkState, OpenError, Options, Promised, ReadError, Session, Volume,
};
use plimsoll_client::{PolicyKind, PolicySettings, Preference};
use plimsoll_nbd::promise::Deadline;
use plimsoll_testkit::eventually;
use std::time::{Duration, Instant};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn options(policy: PolicyKind) -> Options {
    let settings = PolicySettings { order: Preference::Placement, ..PolicySettings::default() };
    Options { policy, settings, connect: MS(2000), stall: MS(2000), limit: MS(10_000), ..Options::default() }
}

fn nodes(does: [Does; 3]) -> (tempfile::TempDir, Vec<Fake>) {
    let dir = tempfile::tempdir().unwrap();
    let start = |(i, d): (usize, &Does)| Fake::start(dir.path(), &i.to_string(), i as u8 + 1, *d);
    let fakes = does.iter().enumerate().map(start).collect();
    (dir, fakes)
}

fn addresses(fakes: &[Fake]) -> Vec<Address> {
    fakes.iter().map(Fake::address).collect()
}

async fn open(fakes: &[Fake], policy: PolicyKind) -> Volume {
    Volume::open(&addresses(fakes), &options(policy)).await.unwrap()
}

fn is_behind(volume: &Volume, replica: usize) -> bool {
    matches!(volume.replicas()[replica].state, LinkState::Behind(_))
}

#[tokio::test]
async fn a_read_goes_on_to_the_next_when_a_node_is_busy() {
    let (_dir, fakes) = nodes([Does::Busy(50_000), Does::Busy(20_000), Does::Serve]);
    let volume = open(&fakes, PolicyKind::Mitt).await;
    assert_eq!(volume.size_bytes(), SIZE);
    assert_eq!(volume.read(0..4096, Some(MS(7))).await.unwrap(), [3; 4096]);
    let deadlines: Vec<_> = fakes.iter().map(|f| f.get(|s| s.deadlines.clone())).collect();
    assert_eq!(deadlines, [[Deadline::Within(7000)], [Deadline::Within(7000)], [Deadline::None]]);
    assert_eq!(fakes[0].get(|s| s.exports.last().cloned()), Some("vol?replica=read".to_string()));
    let counts = volume.counts();
    assert_eq!((counts.gets, counts.tries, counts.busy, counts.failed), (1, 3, 2, 0));
}

/// A node may report any size.
#[tokio::test]
async fn a_set_larger_than_all_numbers_is_refused() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.size_bytes = i64::MAX as u64));
    let groups: Vec<Vec<Address>> = addresses(&fakes).into_iter().map(|a| vec![a]).collect();
    let refused = Volume::open_set(&groups, 512, &options(PolicyKind::Mitt)).await.map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Set(_)), "{refused}");
}

/// Objects take turns over the groups; one group's busy node sends its reads to its own other replica, and what was counted is
/// all groups'.
#[tokio::test]
async fn a_set_reads_each_object_from_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let does = [Does::Busy(50_000), Does::Serve, Does::Serve, Does::Serve];
    let start = |(i, d): (usize, &Does)| Fake::start(dir.path(), &i.to_string(), i as u8 + 1, *d);
    let fakes: Vec<Fake> = does.iter().enumerate().map(start).collect();
    fakes[3].set(|s| s.block_sizes.minimum = 512);
    let all = addresses(&fakes);
    let groups = [vec![all[0].clone(), all[1].clone()], vec![all[2].clone(), all[3].clone()]];
    let object = 3 << 10;
    let set = Volume::open_set(&groups, object, &options(PolicyKind::Mitt)).await.unwrap();
    let each = SIZE / object;
    assert_eq!(set.size_bytes(), 2 * each * object);
    for i in [0, 1, 2, 3, 2 * each - 1] {
        let data = set.read(i * object + 512..(i + 1) * object, Some(MS(7))).await.unwrap();
        assert_eq!(data, vec![if i % 2 == 0 { 2 } else { 3 }; 2560], "object {i}");
    }
    let last = fakes[2].get(|s| s.offsets.last().copied());
    assert_eq!(last, Some((each - 1) * object + 512), "where the last object is in its group");
    let counts = set.counts();
    assert_eq!((counts.gets, counts.tries, counts.busy), (5, 7, 2));
    assert_eq!(set.replicas().len(), 4);
    let across = set.read(object - 512..object + 512, None).await.unwrap_err();
    assert!(across.to_string().contains("two objects"), "{across}");
    assert!(matches!(set.read(2 * each * object..2 * each * object + 512, None).await, Err(ReadError::Range(_))));
    for (groups, object) in [(&groups[..0], object), (&groups[..], 0), (&groups[..], 700), (&groups[..], SIZE + 512)] {
        let refused = Volume::open_set(groups, object, &options(PolicyKind::Mitt)).await.map(drop).unwrap_err();
        assert!(matches!(refused, OpenError::Set(_)), "{refused}");
    }
}

#[tokio::test]
async fn when_all_are_busy_the_least_wait_serves() {
    let (_dir, fakes) = nodes([Does::Busy(50_000), Does::Busy(20_000), Does::Busy(30_000)]);
    let volume = open(&fakes, PolicyKind::MittWait).await;
    assert_eq!(volume.read(4096..8192, None).await.unwrap(), [2; 4096]);
}

/// The caller goes elsewhere itself: it hears the soonest replica's wait and certainty, and no node was asked without the deadline.
#[tokio::test]
async fn a_refusable_read_ends_as_busy_when_all_refuse() {
    let (_dir, fakes) = nodes([Does::Busy(50_000), Does::Busy(20_000), Does::Busy(30_000)]);
    let refusable = Ask { deadline: Some(MS(7)), refusable: true, ..Ask::default() };
    for policy in [PolicyKind::Mitt, PolicyKind::MittWait, PolicyKind::MittBudget] {
        let volume = open(&fakes, policy).await;
        let e = volume.ask(0..4096, refusable).await.unwrap_err();
        let ReadError::Busy { wait, confidence_permille, heard } = &e else { panic!("{policy}: {e}") };
        assert!(*wait <= MS(20) && *wait > Duration::ZERO, "{wait:?}");
        assert_eq!((*confidence_permille, heard.len()), (Some(900), 3));
        assert_eq!((volume.counts().tries, volume.counts().busy), (3, 3));
        fakes[2].set(|s| s.does = Does::Serve);
        assert_eq!(volume.ask(0..4096, refusable).await.unwrap(), [3; 4096], "{policy} falls through");
        fakes[2].set(|s| s.does = Does::Fail);
        let e = volume.ask(0..4096, refusable).await.unwrap_err();
        assert!(
            matches!(&e, ReadError::Busy { heard, .. } if heard.len() == 3),
            "one has failed, others may be waited for: {e}"
        );
        assert!(e.to_string().starts_with("busy: the replicas that didn't fail have refused"), "{e}");
        fakes[2].set(|s| s.does = Does::Busy(30_000));
        assert!(volume.read(0..4096, Some(MS(7))).await.is_ok(), "{policy}: others wait as before");
    }
    let seen = fakes[1].get(|s| s.deadlines.clone());
    assert!(seen.iter().filter(|d| **d == Deadline::Within(7000)).count() >= 9, "{seen:?}");
    let volume = open(&fakes, PolicyKind::Hedged).await;
    assert!(matches!(volume.ask(0..4096, refusable).await, Err(ReadError::Deadline(_))), "nobody would refuse");
}

/// It says how well the node knows its device: 1000 is exact, and there is no more.
#[tokio::test]
async fn a_confidence_above_all_is_taken_for_the_highest() {
    let (_dir, fakes) = nodes([Does::Busy(50_000); 3]);
    fakes.iter().for_each(|f| f.set(|s| (s.confidence, s.written) = (5_000_000, Some(Vec::new()))));
    let volume = open(&fakes, PolicyKind::Mitt).await;
    let e = volume.ask(0..512, Ask { refusable: true, ..Ask::default() }).await.unwrap_err();
    assert!(matches!(e, ReadError::Busy { confidence_permille: Some(1000), .. }), "{e:?}");
    let mut session = Session::open(&fakes[0].address(), "vol".into(), MS(20_000)).await.unwrap();
    let refused = session.read_within(0, 512, Some(MS(7))).await.unwrap();
    assert!(matches!(refused, Promised::Busy { confidence: Some(1.0), .. }), "{refused:?}");
}

#[tokio::test]
async fn every_policy_reads() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    for policy in PolicyKind::ALL {
        let volume = open(&fakes, policy).await;
        for i in 0..20u64 {
            let data = volume.read(i * 512..i * 512 + 512, None).await.unwrap();
            assert!(data.len() == 512 && (1..=3).contains(&data[0]), "{policy}");
        }
        assert_eq!(volume.counts().failed, 0, "{policy}");
    }
    assert!(fakes.iter().all(|f| f.get(|s| s.probes) >= 20), "prequal probes");
}

#[tokio::test]
async fn a_second_request_goes_out_when_the_first_is_slow() {
    let (_dir, fakes) = nodes([Does::Slow(MS(1500)), Does::Serve, Does::Serve]);
    let volume = open(&fakes, PolicyKind::HedgedCancel).await;
    assert_eq!(volume.read(0..512, Some(MS(10))).await.unwrap(), [2; 512]);
    eventually("the cancel", || fakes[0].get(|s| s.cancels) == 1).await;
}

#[tokio::test]
async fn with_all_down_nothing_opens_and_reads_fail_with_what_each_said() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere: Address = format!("nbd+unix:///vol?socket={}/none", dir.path().display()).parse().unwrap();
    let e = Volume::open(&[nowhere.clone(), nowhere], &options(PolicyKind::Mitt)).await.err().unwrap();
    assert!(matches!(&e, OpenError::NoneOpen(all) if all.len() == 2), "{e}");
    assert!(e.to_string().contains("No such file"), "{e}");

    let (_dir, fakes) = nodes([Does::Serve; 3]);
    let volume = open(&fakes, PolicyKind::MittBudget).await;
    fakes.iter().for_each(|f| f.set(|s| s.does = Does::Close));
    let e = volume.read(0..512, None).await.unwrap_err();
    assert!(matches!(&e, ReadError::Failed(all) if all.len() == 3), "{e}");
    assert!(e.to_string().contains("closed the connection"), "{e}");
    // None is connected now, or hardly: the error comes at once and says so.
    let e = volume.read(0..512, None).await.unwrap_err();
    assert!(matches!(e, ReadError::Failed(_)), "{e}");
    fakes.iter().for_each(|f| f.set(|s| s.does = Does::Serve));
    eventually("all to come back", || volume.replicas().iter().all(|r| r.state == LinkState::Up)).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [1; 512]);
}

#[tokio::test]
async fn one_that_hangs_is_given_up_and_the_callers_limit_holds() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    let volume = open(&fakes, PolicyKind::Base).await;
    fakes[0].set(|s| s.does = Does::Hang);
    let began = Instant::now();
    let e = volume.ask(0..512, Ask { limit: Some(MS(200)), ..Ask::default() }).await.unwrap_err();
    assert!(matches!(&e, ReadError::Limit { limit, .. } if *limit == MS(200)), "{e}");
    assert!(e.to_string().contains("hasn't answered") && began.elapsed() < MS(1900), "{e} {:?}", began.elapsed());
    // A caller that waits longer gets its data when the node has been silent for two seconds.
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
    assert!(began.elapsed() >= MS(1900), "{:?}", began.elapsed());
}

#[tokio::test]
async fn one_that_hangs_before_anything_was_agreed_doesnt_keep_others_from_opening() {
    let (_dir, fakes) = nodes([Does::HangInHandshake, Does::Serve, Does::HangInHandshake]);
    let volume = Volume::open(&addresses(&fakes), &Options { connect: MS(2000), ..options(PolicyKind::Mitt) }).await;
    assert_eq!(volume.unwrap().read(0..512, None).await.unwrap(), [2; 512]);
    let all = [fakes[0].address(), fakes[2].address()];
    let e = Volume::open(&all, &Options { connect: MS(300), ..options(PolicyKind::Mitt) }).await.err().unwrap();
    assert!(e.to_string().contains("300ms"), "{e}");
}

#[tokio::test]
async fn garbage_ends_a_connection_and_the_next_node_answers() {
    let (_dir, fakes) = nodes([Does::Garbage, Does::Serve, Does::Serve]);
    let volume = open(&fakes, PolicyKind::Mitt).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
    let (_dir, fakes) = nodes([Does::Garbage; 3]);
    let volume = open(&fakes, PolicyKind::Mitt).await;
    let e = volume.read(0..512, None).await.unwrap_err();
    assert!(e.to_string().contains("speaks no NBD"), "{e}");
}

/// Each notice would withdraw the other copy once more.
#[tokio::test]
async fn a_node_that_begins_a_read_again_and_again_is_given_up() {
    let (_dir, fakes) = nodes([Does::Hold, Does::BeginsAgain, Does::Serve]);
    let mut tied = options(PolicyKind::Tied);
    tied.settings.hop = Span::from_micros(1);
    let volume = Volume::open(&addresses(&fakes), &tied).await.unwrap();
    assert_eq!(volume.read(0..512, None).await.unwrap(), [3; 512]);
    assert_eq!(volume.counts().cancels, 1);
    let ended = || matches!(&volume.replicas()[1].state, LinkState::Down(why) if why.contains("chunks of notes"));
    eventually("the end of its connection", ended).await;
}

#[tokio::test]
async fn a_smaller_volume_is_no_replica() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes[1].set(|s| s.size_bytes = SIZE / 2);
    let e = Volume::open(&addresses(&fakes), &options(PolicyKind::Mitt)).await.err().unwrap();
    assert!(matches!(&e, OpenError::Sizes(all) if all[1].1 == SIZE / 2), "{e}");
    assert!(e.to_string().contains("524288 bytes"), "{e}");
    // One that becomes smaller while it's away isn't taken back.
    fakes[1].set(|s| s.size_bytes = SIZE);
    let volume = open(&fakes, PolicyKind::Base).await;
    fakes[1].set(|s| (s.size_bytes, s.does) = (SIZE / 2, Does::Close));
    fakes[0].set(|s| s.does = Does::Fail);
    assert_eq!(volume.read(0..512, None).await.unwrap(), [3; 512]);
    fakes[1].set(|s| s.does = Does::Serve);
    let refused = || matches!(&volume.replicas()[1].state, LinkState::Down(why) if why.contains("524288 bytes"));
    eventually("the refusal", refused).await;
    // Nor when it's the only one that is there.
    [0, 2].iter().for_each(|i: &usize| fakes[*i].set(|s| s.does = Does::Gone));
    eventually("all to go", || [0, 2].iter().all(|i| matches!(volume.replicas()[*i].state, LinkState::Down(_)))).await;
    let seen = fakes[1].get(|s| s.exports.len());
    eventually("two more connections", || fakes[1].get(|s| s.exports.len()) >= seen + 2).await;
    assert!(volume.read(0..512, None).await.is_err());
    eventually("the refusal", refused).await;
}

#[tokio::test]
async fn deadlines_and_ranges_that_make_no_sense_are_refused_before_anything_is_sent() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    let volume = open(&fakes, PolicyKind::Mitt).await;
    for bad in [Duration::ZERO, Duration::from_nanos(900), Duration::from_secs(5000)] {
        let e = volume.read(0..512, Some(bad)).await.unwrap_err();
        assert!(matches!(e, ReadError::Deadline(_)), "{e}");
    }
    assert!(matches!(
        volume.ask(0..512, Ask { limit: Some(Duration::ZERO), ..Ask::default() }).await,
        Err(ReadError::Deadline(_))
    ));
    #[allow(clippy::reversed_empty_ranges)]
    for bad in [0..0, 512..0, 0..SIZE + 1, u64::MAX - 5..u64::MAX] {
        let e = volume.read(bad, None).await.unwrap_err();
        assert!(matches!(e, ReadError::Range(_)), "{e}");
    }
    assert_eq!(volume.counts().tries, 0);
    let none = Volume::open(&[], &options(PolicyKind::Mitt)).await.err().unwrap();
    assert!(matches!(none, OpenError::Replicas(0)));
    let settings = PolicySettings { limit: Span::ZERO, ..PolicySettings::default() };
    let zero = Options { settings, ..options(PolicyKind::Mitt) };
    assert!(matches!(Volume::open(&addresses(&fakes), &zero).await, Err(OpenError::Policy(_))));
    let promised: Address =
        fakes[0].address().to_string().replace("/vol?", "/vol%3Ftenant=t%26deadline=20ms?").parse().unwrap();
    let e = Volume::open(&[promised], &options(PolicyKind::Mitt)).await.err().unwrap();
    assert!(matches!(&e, OpenError::Deadline(at) if at.contains("deadline=20ms")), "{e}");
    let hasty = Options { stall: MS(10), ..options(PolicyKind::Mitt) };
    assert!(matches!(Volume::open(&addresses(&fakes), &hasty).await, Err(OpenError::Time(_))));
}

#[tokio::test]
async fn replicas_that_are_behind_arent_read_until_they_have_caught_up() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes[0].set(|s| s.generation = 5);
    fakes[1].set(|s| s.generation = 7);
    fakes[2].set(|s| (s.generation, s.does) = (7, Does::Behind));
    let volume = open(&fakes, PolicyKind::Mitt).await;
    assert!(is_behind(&volume, 0) && is_behind(&volume, 2), "{:?}", volume.replicas());
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
    fakes[0].set(|s| s.generation = 7);
    eventually("the first to catch up", || !is_behind(&volume, 0)).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [1; 512]);
}

/// It was stopped in order, and the others went on: it knows of nothing that it lacks.
#[tokio::test]
async fn a_replica_that_comes_back_is_compared_with_the_others_before_it_is_read() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.generation = 1));
    let volume = open(&fakes, PolicyKind::Base).await;
    fakes[0].set(|s| s.does = Does::Gone);
    eventually("the first to go", || matches!(volume.replicas()[0].state, LinkState::Down(_))).await;
    fakes[1..].iter().for_each(|f| f.set(|s| s.generation = 2));
    eventually("the others' change", || volume.replicas()[1..].iter().all(|r| r.generation == 2)).await;
    fakes[0].set(|s| s.does = Does::Serve);
    eventually("the first to be behind", || {
        assert_ne!(volume.replicas()[0].state, LinkState::Up, "it lacks a change");
        is_behind(&volume, 0)
    })
    .await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
}

/// Nobody carries their bytes any more, nor looks at the time.
#[test]
fn reads_fail_at_once_when_the_runtime_that_opened_the_volume_has_ended() {
    let (_dir, fakes) = nodes([Does::Hold, Does::Serve, Does::Serve]);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let volume = first.block_on(open(&fakes, PolicyKind::Base));
    let soon = |volume: Volume| async move {
        let ask = Ask { limit: Some(MS(100)), ..Ask::default() };
        tokio::time::timeout(MS(20_000), volume.ask(0..512, ask)).await.expect("it ends")
    };
    let is_ended = |e: &ReadError| matches!(e, ReadError::Failed(_)) && e.to_string().contains("has ended");
    second.block_on(async {
        let under_way = tokio::spawn(soon(volume.clone()));
        eventually("the request", || volume.counts().tries == 1).await;
        drop_outside(first).await;
        let e = under_way.await.unwrap().unwrap_err();
        assert!(is_ended(&e), "{e}");
        let e = soon(volume.clone()).await.unwrap_err();
        assert!(is_ended(&e), "{e}");
    });
    assert!(volume.replicas().iter().all(|r| matches!(r.state, LinkState::Down(_))));
}

/// A runtime can't be dropped inside of another.
async fn drop_outside(runtime: tokio::runtime::Runtime) {
    tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
}

#[tokio::test]
async fn nothing_older_is_read_than_what_was_read_before() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    let volume = open(&fakes, PolicyKind::Base).await;
    // The first has seen a change that hasn't come to the others.
    fakes[0].set(|s| s.generation = 1);
    assert_eq!(volume.read(0..512, None).await.unwrap(), [1; 512]);
    fakes[0].set(|s| s.does = Does::Fail);
    let e = volume.read(0..512, None).await.unwrap_err();
    assert!(e.to_string().contains("may be older"), "{e}");
    fakes[1].set(|s| s.generation = 1);
    eventually("the second to be read", || !is_behind(&volume, 1)).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
}

/// A killed node comes back with the count that it had at its start, and says that it may lack writes. What was read from it is no
/// older for that.
#[tokio::test]
async fn nothing_older_is_read_after_a_kill() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.generation = 1));
    let volume = open(&fakes, PolicyKind::Base).await;
    fakes[0].set(|s| s.generation = 2);
    assert_eq!(volume.read(0..512, None).await.unwrap(), [1; 512]);
    fakes[0].set(|s| s.does = Does::Gone);
    eventually("the first to go", || matches!(volume.replicas()[0].state, LinkState::Down(_))).await;
    fakes[0].set(|s| (s.generation, s.does) = (0, Does::Behind));
    eventually("the first to be behind", || is_behind(&volume, 0)).await;
    let seen = fakes[1].get(|s| s.probes);
    eventually("two answers of the second", || fakes[1].get(|s| s.probes) >= seen + 3).await;
    let e = volume.read(0..512, None).await.unwrap_err();
    assert!(e.to_string().contains("may be older"), "{e}");
    // A reader that has read nothing takes the data that there are.
    assert_eq!(open(&fakes, PolicyKind::Base).await.read(0..512, None).await.unwrap(), [2; 512]);
    // The operator trusts the first, although the others have seen more.
    fakes[0].set(|s| s.does = Does::Serve);
    let older = || matches!(&volume.replicas()[0].state, LinkState::Behind(why) if why.contains("has seen 0 changes"));
    eventually("the operator's word", older).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
    // And brings it to what the second has.
    fakes[0].set(|s| s.generation = 1);
    eventually("the first to be read", || !is_behind(&volume, 0)).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [1; 512]);
}

#[tokio::test]
async fn servers_that_know_no_promises_are_read_without_them() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.promises = false));
    for policy in [PolicyKind::Prequal, PolicyKind::MittBudget, PolicyKind::Tied] {
        let mut foreign = Options { foreign: true, ..options(policy) };
        // Tied asks the second when the first hasn't begun after three hops: not because this machine paused.
        foreign.settings.hop = Span::from_secs(1);
        let volume = Volume::open(&addresses(&fakes), &foreign).await.unwrap();
        assert_eq!(volume.read(0..65536, Some(MS(1000))).await.unwrap(), [1; 65536], "{policy}");
    }
    assert_eq!(fakes[0].get(|s| s.exports.last().cloned()), Some("vol".to_string()));
}

/// Deadlines, refusals and the comparison of replicas would be missing without a word.
#[tokio::test]
async fn servers_that_know_no_promises_arent_read_unless_that_was_said() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.promises = false));
    let e = Volume::open(&addresses(&fakes), &options(PolicyKind::Mitt)).await.err().expect("they are foreign");
    assert!(matches!(&e, OpenError::NoneOpen(all) if all.len() == 3), "{e}");
    assert!(e.to_string().contains("`foreign`"), "{e}");
    // One beside others isn't read either.
    fakes[1..].iter().for_each(|f| f.set(|s| s.promises = true));
    let volume = open(&fakes, PolicyKind::Mitt).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
}

#[tokio::test]
async fn a_caller_that_leaves_has_its_requests_withdrawn() {
    let (_dir, fakes) = nodes([Does::Slow(MS(1500)), Does::Serve, Does::Serve]);
    let volume = open(&fakes, PolicyKind::Base).await;
    let read = tokio::time::timeout(MS(50), volume.read(0..512, None)).await;
    assert!(read.is_err());
    eventually("the cancel", || fakes[0].get(|s| s.cancels) == 1).await;
}

/// A node answers what was withdrawn with an error: that is no reason to ask the next one.
#[tokio::test]
async fn a_read_that_its_caller_left_goes_to_no_other_replica() {
    let (_dir, fakes) = nodes([Does::Hold, Does::Serve, Does::Serve]);
    let volume = open(&fakes, PolicyKind::Base).await;
    let read = tokio::time::timeout(MS(50), volume.read(0..512, None)).await;
    assert!(read.is_err());
    eventually("the cancel", || fakes[0].get(|s| s.cancels) == 1).await;
    // The answer to it comes before that to a later read on the same connection.
    fakes[0].set(|s| s.does = Does::Serve);
    assert_eq!(volume.read(4096..4608, None).await.unwrap(), [1; 512]);
    assert_eq!(fakes[1].get(|s| s.offsets.clone()), [0; 0]);
    let counts = volume.counts();
    assert_eq!((counts.gets, counts.tries, counts.cancels), (2, 2, 1));
    assert_eq!((counts.errors, counts.failed), (0, 0), "it was withdrawn, nothing has failed");
}

#[tokio::test]
async fn a_read_whose_limit_comes_is_withdrawn() {
    let (_dir, fakes) = nodes([Does::Hold; 3]);
    let volume = open(&fakes, PolicyKind::MittWait).await;
    let e = volume.ask(0..512, Ask { limit: Some(MS(50)), ..Ask::default() }).await.unwrap_err();
    assert!(matches!(&e, ReadError::Limit { heard, .. } if heard.len() == 1), "{e}");
    eventually("the cancel", || fakes[0].get(|s| s.cancels) == 1).await;
    assert_eq!(volume.counts().cancels, 1);
}

/// The first refuses and is asked again without a deadline; when it breaks then, the second was only busy.
#[tokio::test]
async fn a_replica_that_was_only_busy_serves_when_the_others_fail() {
    for policy in [PolicyKind::Mitt, PolicyKind::MittWait, PolicyKind::MittBudget] {
        let (_dir, fakes) = nodes([Does::Busy(50_000), Does::Fail, Does::Fail]);
        let volume = open(&fakes, policy).await;
        assert_eq!(volume.read(0..512, Some(MS(7))).await.unwrap(), [1; 512], "{policy}");
    }
}

#[tokio::test]
async fn one_that_hangs_and_reads_nothing_is_given_up_too() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    let volume = open(&fakes, PolicyKind::Base).await;
    fakes[0].set(|s| s.does = Does::HangUnread);
    // More than its socket holds, so that there is always something left to be sent.
    let mut reads = tokio::task::JoinSet::new();
    for _ in 0..5000 {
        let volume = volume.clone();
        reads.spawn(async move { volume.read(0..512, None).await });
    }
    let all = reads.join_all().await;
    let other = all.iter().filter(|r| !matches!(r, Ok(data) if data[0] == 2 || data[0] == 1)).count();
    assert_eq!(other, 0, "{:?}", all.iter().find(|r| r.is_err()));
    assert!(all.iter().filter(|r| matches!(r, Ok(data) if data[0] == 2)).count() > 4000);
}

#[tokio::test]
async fn an_operators_word_for_an_older_replica_holds() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.generation = 5));
    let volume = open(&fakes, PolicyKind::Base).await;
    // The writer was lost when only the first had its last change, which was read.
    fakes[0].set(|s| s.generation = 6);
    assert_eq!(volume.read(0..512, None).await.unwrap(), [1; 512]);
    fakes.iter().for_each(|f| f.set(|s| s.does = Does::Behind));
    eventually("all to be behind", || (0..3).all(|i| is_behind(&volume, i))).await;
    // The second is trusted.
    fakes[1].set(|s| s.does = Does::Serve);
    eventually("the second to be read", || !is_behind(&volume, 1)).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
    // And the first brought to what it has.
    fakes[0].set(|s| (s.generation, s.does) = (5, Does::Serve));
    eventually("the first to be read", || !is_behind(&volume, 0)).await;
    assert_eq!(volume.read(0..512, None).await.unwrap(), [1; 512]);
}

#[tokio::test]
async fn what_a_replica_that_is_behind_counts_is_nothing_to_others() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.generation = 7));
    fakes[2].set(|s| (s.generation, s.does) = (1000, Does::Behind));
    let volume = open(&fakes, PolicyKind::Base).await;
    // Each is asked again, and has changed since.
    fakes[..2].iter().for_each(|f| f.set(|s| s.generation = 8));
    eventually("two answers of both", || volume.replicas()[..2].iter().all(|r| r.generation == 8)).await;
    fakes[..2].iter().for_each(|f| f.set(|s| s.generation = 9));
    eventually("two answers of both", || volume.replicas()[..2].iter().all(|r| r.generation == 9)).await;
    assert!(!is_behind(&volume, 0) && !is_behind(&volume, 1) && is_behind(&volume, 2), "{:?}", volume.replicas());
    // One that was read and isn't there any more does count: what is older than it stays unread.
    fakes[0].set(|s| s.generation = 10);
    eventually("the first's word", || volume.replicas()[0].generation == 10).await;
    fakes[0].set(|s| s.does = Does::Gone);
    eventually("the second to be behind", || is_behind(&volume, 1)).await;
}

/// A replica that has once named far too many changes, and is gone then, keeps no other from being read.
#[tokio::test]
async fn one_wrong_count_of_changes_is_nothing_to_others() {
    let (_dir, fakes) = nodes([Does::Serve; 3]);
    fakes.iter().for_each(|f| f.set(|s| s.generation = 5));
    let volume = open(&fakes, PolicyKind::Base).await;
    fakes[0].set(|s| s.generation = 1 << 40);
    let seen = fakes[0].get(|s| s.probes);
    eventually("an answer that is wrong", || fakes[0].get(|s| s.probes) >= seen + 2).await;
    fakes[0].set(|s| s.does = Does::Gone);
    eventually("its end", || matches!(volume.replicas()[0].state, LinkState::Down(_))).await;
    let seen = fakes[1].get(|s| s.probes);
    eventually("two answers of the second", || fakes[1].get(|s| s.probes) >= seen + 3).await;
    assert!(!is_behind(&volume, 1) && !is_behind(&volume, 2), "{:?}", volume.replicas());
    assert_eq!(volume.read(0..512, None).await.unwrap(), [2; 512]);
    // One that says it again and again isn't read, and says so.
    fakes[0].set(|s| s.does = Does::Serve);
    eventually("the first to be read", || !matches!(volume.replicas()[0].state, LinkState::Down(_))).await;
    eventually(
        "the reason",
        || matches!(&volume.replicas()[0].state, LinkState::Behind(why) if why.contains("1099511627776")),
    )
    .await;
}

/// A folder on a server that is gone: its files can't be read for ever.
#[test]
fn certificates_that_cant_be_read_keep_no_caller_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("ca-cert.pem")).status().unwrap();
    assert!(made.success());
    let address = format!("nbds://127.0.0.1:1/v?tls-certificates={}", dir.path().display()).parse().unwrap();
    let (send, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let options = Options { connect: MS(300), ..options(PolicyKind::Mitt) };
        send.send(Blocking::open(&[address], &options).map(drop).unwrap_err().to_string())
    });
    let said = ended.recv_timeout(MS(20_000)).expect("it returns");
    assert!(said.contains("300ms"), "{said}");
}
