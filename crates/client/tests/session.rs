//! One request after another, at servers that behave badly.

mod fake;

use fake::{Does, Fake, SIZE};
use plimsoll_client::live::Session;
use plimsoll_nbd::promise::Deadline;
use plimsoll_nbd::wire::{Command, Extent};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn one(extents: &[u32]) -> (tempfile::TempDir, Fake) {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(dir.path(), "one", 1, Does::Serve);
    let extents = extents.iter().map(|length| Extent { length: *length, status: 3 }).collect();
    fake.set(|s| s.written = Some(extents));
    (dir, fake)
}

async fn open(fake: &Fake, patience: Duration) -> std::io::Result<Session> {
    Session::open(&fake.address(), "vol".into(), patience).await
}

#[tokio::test]
async fn what_the_volume_promises_doesnt_refuse_its_reads() {
    let (_dir, fake) = one(&[4096]);
    fake.set(|s| s.does = Does::Busy(50_000));
    let mut session = open(&fake, PATIENCE).await.unwrap();
    assert_eq!(session.read(0, 512).await.unwrap(), [1; 512]);
    assert_eq!(fake.get(|s| s.deadlines.clone()), [Deadline::None]);
}

#[tokio::test]
async fn no_answer_is_waited_for_longer_than_was_said() {
    let (_dir, fake) = one(&[4096]);
    // Opening takes its time on a busy machine, too.
    let short = Duration::from_secs(2);
    let mut session = open(&fake, short).await.unwrap();
    fake.set(|s| s.does = Does::Hang);
    let e = session.read(0, 512).await.unwrap_err();
    assert!(e.to_string().contains("2s"), "{e}");
    fake.set(|s| s.does = Does::HangInHandshake);
    assert_eq!(open(&fake, Duration::from_millis(300)).await.err().unwrap().kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn pieces_are_the_volumes_whatever_a_server_says() {
    let (_dir, fake) = one(&[SIZE as u32 / 2, u32::MAX]);
    let mut session = open(&fake, PATIENCE).await.unwrap();
    assert_eq!(session.written().await.unwrap(), [(SIZE / 2, 3), (SIZE / 2, 3)]);
    // A byte at a time: as many requests as the volume has bytes.
    let (_dir, fake) = one(&[1]);
    let mut session = open(&fake, PATIENCE).await.unwrap();
    let e = session.written().await.unwrap_err();
    assert!(e.to_string().contains("more changed pieces"), "{e}");
    // A server without the context, or without any.
    fake.set(|s| s.written = None);
    let e = open(&fake, PATIENCE).await.err().unwrap();
    assert!(e.to_string().contains("a Plimsoll node?"), "{e}");
}

/// A header has 32 bits for a length: what is left of longer data would be taken for requests.
#[tokio::test]
async fn data_that_are_too_long_for_a_write_arent_sent() {
    let (_dir, fake) = one(&[4096]);
    fake.set(|s| s.block_sizes.payload_max = 4096);
    let mut session = open(&fake, PATIENCE).await.unwrap();
    let e = session.write(0, &[7; 8192]).await.unwrap_err().to_string();
    assert!(e.contains("8192") && e.contains("at most 4096"), "{e}");
    session.write(512, &[7; 4096]).await.expect("the session is as it was");
    assert_eq!(fake.get(|s| s.changes.clone()), [(Command::Write, 512, 4096)]);
}

/// The late answer to a request that was given up is never taken for that to another.
#[tokio::test]
async fn after_a_request_that_was_given_up_nothing_more_is_asked() {
    let (_dir, fake) = one(&[4096]);
    let short = Duration::from_secs(2);
    let mut session = open(&fake, short).await.unwrap();
    fake.set(|s| s.does = Does::Slow(short + Duration::from_millis(200)));
    let e = session.read(0, 4096).await.map(drop).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::TimedOut, "{e}");
    fake.set(|s| s.does = Does::Serve);
    let e = session.read(0, 8192).await.map(drop).unwrap_err();
    assert!(e.to_string().contains("open another session"), "{e}");

    // A change that was given up isn't acknowledged in a flush's name; nor is the session ended as if it lacked nothing.
    let mut session = open(&fake, short).await.unwrap();
    fake.set(|s| s.does = Does::HoldChanges);
    assert!(session.write(0, &[7; 512]).await.is_err());
    fake.set(|s| s.does = Does::Serve);
    let e = session.flush().await.unwrap_err();
    assert!(e.to_string().contains("open another session"), "{e}");
    assert!(session.close().await.is_err());

    // A future that is dropped is the same; the next session's farewell comes after it would have come.
    let mut session = open(&fake, PATIENCE).await.unwrap();
    fake.set(|s| s.does = Does::Hold);
    assert!(tokio::time::timeout(Duration::from_millis(20), session.read(4096, 512)).await.is_err());
    fake.set(|s| s.does = Does::Serve);
    assert!(session.read(0, 512).await.unwrap_err().to_string().contains("given up"));
    assert!(session.close().await.is_err());
    let mut session = open(&fake, PATIENCE).await.unwrap();
    assert!(session.read(0, 0).await.is_err(), "nothing was sent");
    assert_eq!(session.read(0, 512).await.unwrap(), [1; 512], "and the session is as it was");
    session.close().await.unwrap();
    plimsoll_testkit::eventually("the last one's farewell", || fake.get(|s| s.farewells) == 1).await;
}
