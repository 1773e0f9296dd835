//! One request after another, at servers that behave badly.

mod fake;

use fake::{Does, Fake, SIZE};
use plimsoll_client::live::Session;
use plimsoll_nbd::promise::Deadline;
use plimsoll_nbd::wire::Extent;
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
    let short = Duration::from_millis(300);
    let mut session = open(&fake, short).await.unwrap();
    fake.set(|s| s.does = Does::Hang);
    let e = session.read(0, 512).await.unwrap_err();
    assert!(e.to_string().contains("300ms"), "{e}");
    fake.set(|s| s.does = Does::HangInHandshake);
    assert_eq!(open(&fake, short).await.err().unwrap().kind(), std::io::ErrorKind::TimedOut);
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
