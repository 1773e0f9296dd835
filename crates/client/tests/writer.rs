//! A writer over several replicas: all have a change or it fails, and whoever may lack one isn't told farewell.

mod fake;

use fake::{Does, Fake, SIZE};
use plimsoll_client::live::{Address, OpenError, Options, WriteError, Writer};
use plimsoll_nbd::wire::{Command, Extent};
use plimsoll_testkit::eventually;
use std::time::{Duration, Instant};

fn two() -> (tempfile::TempDir, [Fake; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let fakes = ["a", "b"].map(|name| Fake::start(dir.path(), name, 7, Does::Serve));
    fakes.iter().for_each(|f| {
        f.set(|s| {
            s.written = Some(vec![Extent { length: SIZE as u32, status: 0 }]);
            s.block_sizes.minimum = 512;
            s.block_sizes.payload_max = 65_536;
        })
    });
    (dir, fakes)
}

async fn open(fakes: &[Fake]) -> Result<Writer, OpenError> {
    let addresses: Vec<Address> = fakes.iter().map(Fake::address).collect();
    Writer::open(&addresses, &Options { limit: Duration::from_secs(20), ..Options::default() }).await
}

/// Nobody who is refused has connected as a writer.
fn none_has_written(fakes: &[Fake]) {
    let exports = fakes.iter().flat_map(|f| f.get(|s| s.exports.clone()));
    assert!(exports.inspect(|name| assert!(name.contains("replica="))).all(|name| name.ends_with("replica=read")));
}

/// A server hears of a farewell after the client has sent it.
async fn until_farewells(fakes: &[Fake], wanted: [u32; 2]) {
    let began = Instant::now();
    let now = || [fakes[0].get(|s| s.farewells), fakes[1].get(|s| s.farewells)];
    while now() != wanted {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?} farewells", now());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn all_replicas_have_each_change_in_order_and_are_told_farewell() {
    let (_dir, fakes) = two();
    let writer = open(&fakes).await.unwrap();
    writer.write(512, &[7; 150_016]).await.unwrap();
    writer.flush().await.unwrap();
    writer.trim(0, SIZE).await.unwrap();
    let all = [
        (Command::Write, 512, 65_536),
        (Command::Write, 66_048, 65_536),
        (Command::Write, 131_584, 18_944),
        (Command::Flush, 0, 0),
        (Command::Trim, 0, SIZE as u32),
    ];
    fakes.iter().for_each(|f| assert_eq!(f.get(|s| s.changes.clone()), all));
    assert_eq!(fakes[0].get(|s| s.exports.last().cloned()), Some("vol?replica=write".to_string()));
    writer.close().await;
    until_farewells(&fakes, [1, 1]).await;
    assert!(matches!(writer.flush().await, Err(WriteError::Closed(_))));
}

#[tokio::test]
async fn a_range_that_isnt_the_volumes_is_refused_before_anything_is_sent() {
    let (_dir, fakes) = two();
    let writer = open(&fakes).await.unwrap();
    for (offset, length) in [(0, 0), (SIZE, 512), (SIZE - 512, 1024), (u64::MAX, 512), (1, 512), (0, 100)] {
        let e = writer.write(offset, &vec![7; length]).await.unwrap_err();
        assert!(matches!(e, WriteError::Range(_)), "{offset} {length}: {e}");
        assert!(matches!(writer.trim(offset, length as u64).await, Err(WriteError::Range(_))));
    }
    assert!(fakes.iter().all(|f| f.get(|s| s.changes.is_empty())));
    writer.write(0, &[7; 512]).await.expect("the writer is as it was");
}

/// The replica that failed may lack the change: its session ends without a farewell, so that its node marks it.
#[tokio::test]
async fn a_change_that_a_replica_lacks_fails_and_is_the_last() {
    let (_dir, fakes) = two();
    let writer = open(&fakes).await.unwrap();
    fakes[1].set(|s| s.does = Does::Fail);
    let e = writer.write(0, &[7; 512]).await.unwrap_err();
    assert!(matches!(&e, WriteError::Failed(heard) if heard.len() == 1 && heard[0].contains("b.sock")), "{e}");
    assert!(e.to_string().contains("the disk is broken"), "{e}");
    assert_eq!(fakes[0].get(|s| s.changes.len()), 1);
    fakes[1].set(|s| s.does = Does::Serve);
    let e = writer.write(0, &[7; 512]).await.unwrap_err();
    assert!(matches!(&e, WriteError::Closed(why) if why.contains("the disk is broken")), "{e}");
    assert_eq!(fakes.each_ref().map(|f| f.get(|s| s.changes.len())), [1, 1], "nothing was sent");
    writer.close().await;
    until_farewells(&fakes, [1, 0]).await;
}

/// A write dropped half way may be on one replica only. The writer then ends without a farewell to any node.
#[tokio::test]
async fn a_write_that_is_given_up_ends_the_writer_without_a_farewell() {
    let (_dir, fakes) = two();
    let writer = open(&fakes).await.unwrap();
    fakes[1].set(|s| s.does = Does::HangUnread);
    let short = tokio::time::timeout(Duration::from_millis(50), writer.write(0, &[7; 512])).await;
    assert!(short.is_err(), "it hangs");
    let e = writer.flush().await.unwrap_err();
    assert!(matches!(&e, WriteError::Closed(why) if why.contains("given up")), "{e}");
    writer.close().await;
    drop(writer);
    // A session that is opened and closed now ends after those two would have.
    fakes[1].set(|s| s.does = Does::Serve);
    open(&fakes).await.unwrap().close().await;
    until_farewells(&fakes, [1, 1]).await;
}

/// A node marks a replica that gets a second writer: nobody could read it, and neither writer would know.
#[tokio::test]
async fn a_second_writer_is_refused_and_the_first_goes_on() {
    let (_dir, fakes) = two();
    let first = open(&fakes).await.unwrap();
    let e = open(&fakes).await.err().expect("there is one");
    assert!(matches!(&e, OpenError::Writer(all) if all.len() == 2), "{e}");
    assert!(fakes.iter().all(|f| f.get(|s| !s.marked)), "none is marked");
    first.write(0, &[7; 512]).await.unwrap();
    first.close().await;
    // One on some of them is one, too.
    let first = open(&fakes[1..]).await.expect("the other has left");
    let e = open(&fakes).await.err().expect("the second has one");
    assert!(matches!(&e, OpenError::Writer(all) if all.len() == 1 && all[0].contains("b.sock")), "{e}");
    first.close().await;
    let e = open(&[fakes[0].clone(), fakes[0].clone()]).await.err().expect("it would be its own second");
    assert!(matches!(&e, OpenError::Twice(_)), "{e}");
    open(&fakes).await.expect("all have left").close().await;
    assert!(fakes.iter().all(|f| f.get(|s| !s.marked)), "none is marked");
}

/// It comes after the look at the replicas: they are marked, and that isn't kept from whoever came second.
#[tokio::test]
async fn a_writer_that_comes_at_the_same_moment_is_told() {
    let (_dir, fakes) = two();
    fakes[1].set(|s| s.marks_writers = true);
    let e = open(&fakes).await.err().expect("another came");
    assert!(matches!(&e, OpenError::Writer(all) if all.len() == 1 && all[0].contains("b.sock")), "{e}");
    until_farewells(&fakes, [1, 1]).await;
}

/// A flush changes nothing, and everything before it was acknowledged everywhere: the replicas stay complete, the writer is broken.
#[tokio::test]
async fn a_flush_that_is_late_or_given_up_leaves_the_replicas_complete() {
    for late in [true, false] {
        let (_dir, fakes) = two();
        let limit = Duration::from_secs(if late { 2 } else { 20 });
        let options = Options { limit, ..Options::default() };
        let addresses = fakes.each_ref().map(Fake::address);
        let writer = Writer::open(&addresses, &options).await.unwrap();
        writer.write(0, &[7; 512]).await.unwrap();
        fakes[1].set(|s| s.does = Does::HangUnread);
        if late {
            let e = writer.flush().await.unwrap_err();
            assert!(matches!(&e, WriteError::Failed(heard) if heard.len() == 1 && heard[0].contains("2s")), "{e}");
        } else {
            assert!(tokio::time::timeout(Duration::from_millis(50), writer.flush()).await.is_err(), "it hangs");
        }
        fakes[1].set(|s| s.does = Does::Serve);
        let e = writer.write(0, &[7; 512]).await.unwrap_err();
        assert!(matches!(&e, WriteError::Closed(_)), "{e}");
        writer.close().await;
        until_farewells(&fakes, [1, 1]).await;
    }
}

/// A node marks the replica of a writer that goes without a farewell, though nothing was written.
#[tokio::test]
async fn an_open_that_is_given_up_marks_no_replica() {
    let (_dir, fakes) = two();
    fakes[1].set(|s| s.does = Does::HangWriters);
    let addresses = fakes.each_ref().map(Fake::address);
    let options = Options { limit: Duration::from_secs(2), ..Options::default() };
    let asked = eventually("the second is asked", || fakes[1].get(|s| s.writers > 0 && s.probes >= 2));
    tokio::select! {
        opened = Writer::open(&addresses, &options) => panic!("it hangs: {:?}", opened.err()),
        () = asked => {}
    }
    until_farewells(&fakes, [1, 1]).await;
}

#[tokio::test]
async fn a_writer_needs_all_replicas_and_one_size() {
    let (dir, fakes) = two();
    let nowhere: Address = format!("nbd+unix:///vol?socket={}/none", dir.path().display()).parse().unwrap();
    let e = Writer::open(&[fakes[0].address(), nowhere], &Options::default()).await.err().unwrap();
    assert!(matches!(&e, OpenError::NotAll(all) if all.len() == 1), "{e}");
    fakes[1].set(|s| s.size_bytes = SIZE / 2);
    let e = open(&fakes).await.err().unwrap();
    assert!(matches!(e, OpenError::Sizes(_)), "{e}");
    none_has_written(&fakes);
    assert!(matches!(Writer::open(&[], &Options::default()).await, Err(OpenError::Replicas(0))));
}

/// A writer that is closed meanwhile ends the write that is under way, and sends nothing of those that wait: `Closed` says so.
#[tokio::test]
async fn a_long_write_isnt_closed_half_way_and_those_that_wait_arent_begun() {
    let (_dir, fakes) = two();
    let writer = open(&fakes).await.unwrap();
    fakes.iter().for_each(|f| f.set(|s| s.does = Does::HoldChanges));
    let begun = async {
        while !fakes.iter().all(|f| f.get(|s| s.changes.len() == 1)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fakes.iter().for_each(|f| f.set(|s| s.does = Does::Serve));
    };
    // Polled in this order: each waits for the one before it.
    let (written, waits, (), ()) = tokio::join!(
        biased;
        writer.write(0, &[7; 3 * 65_536]),
        writer.write(0, &[7; 512]),
        writer.close(),
        begun
    );
    written.expect("it had begun");
    assert!(matches!(waits, Err(WriteError::Closed(_))), "{waits:?}");
    assert_eq!(fakes.each_ref().map(|f| f.get(|s| s.changes.len())), [3, 3]);
    assert!(matches!(writer.write(0, &[7; 512]).await, Err(WriteError::Closed(_))));
    until_farewells(&fakes, [1, 1]).await;
}

/// The longest payload of one is shorter than the other's unit.
#[tokio::test]
async fn replicas_without_a_common_length_of_writes_are_refused() {
    let (_dir, fakes) = two();
    fakes[0].set(|s| s.block_sizes.payload_max = 4096);
    fakes[1].set(|s| (s.block_sizes.minimum, s.block_sizes.preferred) = (8192, 8192));
    let e = open(&fakes).await.err().unwrap();
    assert!(e.to_string().contains("8192") && e.to_string().contains("4096"), "{e}");
    none_has_written(&fakes);
}

/// One missed changes of another writer without noticing: a change would then be on top of different data.
#[tokio::test]
async fn replicas_that_have_seen_different_changes_are_refused() {
    let (_dir, fakes) = two();
    fakes[0].set(|s| s.generation = 8201);
    fakes[1].set(|s| s.generation = 8200);
    let e = open(&fakes).await.err().unwrap().to_string();
    for part in ["8201", "8200", "a.sock", "b.sock", "resync"] {
        assert!(e.contains(part), "{e}");
    }
    none_has_written(&fakes);
    // One that is known to lack changes isn't read before its resync: it may be written meanwhile.
    fakes[1].set(|s| s.does = Does::Behind);
    open(&fakes).await.expect("the other one is complete").close().await;
    fakes[1].set(|s| (s.does, s.generation) = (Does::Serve, 8201));
    open(&fakes).await.expect("they are equal").close().await;
}

/// One was stopped in order, and the other got a change alone before it lost its writer: it is marked, and has that change.
#[tokio::test]
async fn a_marked_replica_that_may_be_the_newer_one_is_refused() {
    let (_dir, fakes) = two();
    fakes[0].set(|s| (s.does, s.generation) = (Does::Behind, 11));
    fakes[1].set(|s| s.generation = 10);
    let e = open(&fakes).await.err().unwrap();
    assert!(matches!(&e, OpenError::Newer { .. }), "{e}");
    for part in ["a.sock: 11 changes, marked", "b.sock: 10 changes, complete", "resync"] {
        assert!(e.to_string().contains(part), "{e}");
    }
    none_has_written(&fakes);
    // Without a complete one there is nothing that readers would take for it.
    fakes[1].set(|s| s.does = Does::Behind);
    open(&fakes).await.expect("both are marked").close().await;
    fakes[1].set(|s| (s.does, s.generation) = (Does::Serve, 11));
    open(&fakes).await.expect("the marked one has no more").close().await;
}
