//! Images of the fake of Ceph's libraries: completions in another order, errors, a lost lock, short images, and what a loader says.

use plimsoll_base::{Buf, BufMut};
use plimsoll_rbd::{Cluster, Done, Image, Libraries, LockState, Queue};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: u64 = 16 << 20;

/// A folder with a cluster: its configuration, an image, and the two libraries.
struct Fake {
    folder: tempfile::TempDir,
}

/// Cargo builds examples for tests; they lie beside the tests' own folder.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().nth(2).unwrap().join("examples/libfake_ceph.so")
}

impl Fake {
    fn new() -> Fake {
        let folder = tempfile::tempdir().unwrap();
        for name in ["librados.so.2", "librbd.so.1"] {
            std::os::unix::fs::symlink(library(), folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("ceph.conf"), "").unwrap();
        std::fs::File::create(folder.path().join("pool.image")).unwrap().set_len(BYTES).unwrap();
        Fake { folder }
    }

    fn control(&self, lines: &str) {
        std::fs::write(self.folder.path().join("control"), lines).unwrap();
    }

    fn cluster(&self) -> Arc<Cluster> {
        let libraries = Libraries::load(Some(self.folder.path())).unwrap();
        Cluster::connect(&libraries, &self.folder.path().join("ceph.conf"), "admin", &[]).unwrap()
    }

    fn image(&self) -> Arc<Image> {
        Arc::new(Image::open(&self.cluster(), "pool/image", false).unwrap())
    }

    fn queue(&self) -> Queue {
        let image = self.image();
        image.lock().unwrap();
        Queue::new(image).unwrap()
    }
}

/// Waits until all in flight has ended.
fn all(queue: &mut Queue) -> Vec<Done> {
    let mut ended = Vec::new();
    while !queue.is_empty() {
        let mut count = [0; 8];
        rustix::io::read(queue.event(), &mut count).unwrap();
        ended.extend(std::iter::from_fn(|| queue.next_done()));
    }
    ended
}

fn block(n: usize) -> Buf {
    Buf::copy_of(&[n as u8 + 1; 4096])
}

#[test]
fn bytes_come_back_whatever_the_order_of_completions() {
    let fake = Fake::new();
    let mut queue = fake.queue();
    for n in 0..64 {
        queue.write(n, n as u64 * 4096, block(n)).unwrap();
    }
    let order: Vec<usize> = all(&mut queue).iter().map(|d| d.tag).collect();
    assert!(!order.is_sorted(), "the fake ends requests in an order of its own");
    for n in 0..64 {
        queue.read(n, n as u64 * 4096, BufMut::zeroed(4096)).unwrap();
    }
    let read: BTreeMap<usize, Buf> = all(&mut queue).into_iter().map(|d| (d.tag, d.read.unwrap())).collect();
    assert!((0..64).all(|n| read[&n].as_slice() == block(n).as_slice()));
    queue.zero(1, 4096, 8192, false).unwrap();
    queue.flush(2).unwrap();
    assert!(all(&mut queue).iter().all(|d| d.result.is_ok()));
    let mut out = vec![1; 4 * 4096];
    queue.image().read_at(&mut out, 0).unwrap();
    assert!(out[..4096].iter().all(|b| *b == 1) && out[4096..12288].iter().all(|b| *b == 0) && out[12288] == 4);
}

/// librados has a limit for all OSDs together, at which it takes nothing more.
#[test]
fn requests_that_wait_for_one_osd_keep_none_from_another() {
    const OBJECT: u64 = 4 << 20;
    let fake = Fake::new();
    let mut queue = fake.queue();
    fake.control("slow 0 3000000\n");
    for n in 0..1100 {
        queue.read(n, 0, BufMut::zeroed(512)).unwrap();
    }
    queue.read(1100, OBJECT, BufMut::zeroed(512)).unwrap();
    assert_eq!(all(&mut queue)[0].tag, 1100, "the first to end is of an OSD that works");
}

#[test]
fn errors_end_the_request_that_they_are_of() {
    let fake = Fake::new();
    let mut queue = fake.queue();
    fake.control("fail read 5\nfull\n");
    queue.read(1, 0, BufMut::zeroed(512)).unwrap();
    queue.write(2, 0, block(0)).unwrap();
    queue.flush(3).unwrap();
    let results: BTreeMap<usize, Result<(), i32>> = all(&mut queue).iter().map(|d| (d.tag, d.result)).collect();
    assert_eq!(results, BTreeMap::from([(1, Err(libc::EIO)), (2, Err(libc::ENOSPC)), (3, Ok(()))]));
    assert_eq!(queue.image().known_lock_state(), LockState::Owned);
}

#[test]
fn nothing_is_written_once_the_lock_is_lost() {
    let fake = Fake::new();
    let mut queue = fake.queue();
    queue.write(1, 0, block(1)).unwrap();
    assert!(all(&mut queue)[0].result.is_ok());
    fake.control("stolen\n");
    queue.write(2, 0, block(2)).unwrap();
    assert_eq!(all(&mut queue)[0].result, Err(libc::ESHUTDOWN), "the cluster refuses this client");
    assert_eq!(queue.image().known_lock_state(), LockState::Lost);
    // Even if the cluster would take it again.
    fake.control("");
    assert_eq!(queue.write(3, 0, block(3)), Err(libc::ESHUTDOWN));
    assert_eq!((queue.zero(4, 0, 512, false), queue.flush(5)), (Err(libc::ESHUTDOWN), Err(libc::ESHUTDOWN)));
    assert!(
        queue.image().write_at(&[1], 0).unwrap_err().to_string().contains("pool/image: its exclusive lock is lost")
    );
    assert_eq!(queue.image().lock_state(), LockState::Lost);
    // An idle image hears of it when it asks.
    let fake = Fake::new();
    let image = fake.image();
    image.lock().unwrap();
    assert_eq!(image.lock_state(), LockState::Owned);
    fake.control("stolen\n");
    assert_eq!(image.lock_state(), LockState::Lost);
}

#[test]
fn one_handle_has_the_lock() {
    let fake = Fake::new();
    let first = fake.image();
    assert!(!first.has_owner().unwrap());
    first.lock().unwrap();
    // librbd's read-only handles can't ask for the lock.
    assert!(Image::open(&fake.cluster(), "pool/image", true).unwrap().has_owner().is_err());
    let looking = Image::open(&fake.cluster(), "pool/image", false).unwrap();
    assert!(looking.has_owner().unwrap() && first.has_owner().unwrap());
    let second = fake.image();
    let e = second.lock().unwrap_err().to_string();
    assert!(e.contains("pool/image: its exclusive lock can't be had: another client has it"), "{e}");
    drop(first);
    assert!(!looking.has_owner().unwrap());
    second.lock().unwrap();
    fake.control("no-exclusive-lock\n");
    let e = fake.image().lock().unwrap_err().to_string();
    assert!(e.contains("rbd feature enable pool/image exclusive-lock"), "{e}");
}

#[test]
fn a_short_image_reads_as_an_error() {
    let fake = Fake::new();
    let mut queue = fake.queue();
    fake.control("size 1000\n");
    assert_eq!(queue.image().size_bytes().unwrap(), 1000);
    queue.read(1, 0, BufMut::zeroed(4096)).unwrap();
    assert_eq!(all(&mut queue)[0].result, Err(libc::EIO));
    let e = queue.image().read_at(&mut [0; 4096], 0).unwrap_err().to_string();
    assert_eq!(e, "RBD image pool/image: 1000 of 4096 bytes at 0 could be read");
}

#[test]
fn what_is_missing_is_named() {
    let says = |e: plimsoll_rbd::Error| e.to_string();
    let e = says(Libraries::load(Some(Path::new("/nowhere"))).err().unwrap());
    assert!(e.contains("/nowhere/librados.so.2 can't be loaded") && e.contains("`librados2`"), "{e}");
    let fake = Fake::new();
    let libraries = Libraries::load(Some(fake.folder.path())).unwrap();
    let e = says(Cluster::connect(&libraries, Path::new("/nowhere/ceph.conf"), "admin", &[]).unwrap_err());
    assert!(e.starts_with("/nowhere/ceph.conf: Ceph's configuration can't be read"), "{e}");
    let e = says(Image::open(&fake.cluster(), "pool/other", false).unwrap_err());
    assert!(e.contains("rbd create --size") && e.contains("No such file"), "{e}");
    // librbd's cache, whoever turned it on; settings that can't be read are no permission.
    for (control, says_so) in [
        (
            "setting 1 rbd_cache true\n",
            "for pool `pool`, and writes would be acknowledged from a cache: `rbd config pool remove pool rbd_cache`",
        ),
        ("setting 2 rbd_cache yes\n", "`rbd config image remove pool/image rbd_cache`"),
        ("setting 1 rbd_plugins pwl_cache\n", "rbd_plugins = pwl_cache"),
        // The fence, and the OSDs that are read from.
        (
            "setting 1 rbd_blocklist_on_break_lock false\n",
            "for pool `pool`, and an owner whose lock was broken could go on writing: `rbd config pool remove pool rbd_blocklist_on_break_lock`",
        ),
        (
            "setting 2 rbd_blocklist_expire_seconds 5\n",
            "`rbd config image remove pool/image rbd_blocklist_expire_seconds`",
        ),
        (
            "setting 1 rbd_blocklist_expire_seconds 3599\n",
            "(0, which is the cluster's time, or at least 3600 is needed)",
        ),
        (
            "setting 2 rbd_read_from_replica_policy balance\n",
            "reads wouldn't go to the OSDs that their forecasts are of",
        ),
        ("settings-fail 5\n", "its settings can't be read"),
    ] {
        fake.control(control);
        let e = says(Image::open(&fake.cluster(), "pool/image", false).unwrap_err());
        assert!(e.contains(says_so), "{e}");
    }
    fake.control(
        "setting 2 rbd_cache no\nsetting 1 rbd_blocklist_on_break_lock true\nsetting 1 rbd_qos_iops_limit 5\n",
    );
    Image::open(&fake.cluster(), "pool/image", false).unwrap();
    // A longer block is as good as the cluster's.
    for seconds in [0, 3600, 31_536_000] {
        fake.control(&format!("setting 1 rbd_blocklist_expire_seconds {seconds}\n"));
        Image::open(&fake.cluster(), "pool/image", false).unwrap();
    }
    fake.control("");
    // A handle of one host has a policy of its own, which the image's would override as well.
    let policy = [("rbd_read_from_replica_policy", "localize")];
    let at_host = || {
        let cluster = Cluster::connect(&libraries, &fake.folder.path().join("ceph.conf"), "admin", &policy).unwrap();
        Image::open(&cluster, "pool/image", true)
    };
    at_host().unwrap();
    fake.control("setting 2 rbd_read_from_replica_policy default\n");
    assert!(says(at_host().unwrap_err()).contains("rbd config image remove pool/image rbd_read_from_replica_policy"));
    Image::open(&fake.cluster(), "pool/image", false).unwrap();
    fake.control("");
    std::fs::write(fake.folder.path().join("down"), "").unwrap();
    let conf = fake.folder.path().join("ceph.conf");
    let e = says(Cluster::connect(&libraries, &conf, "admin", &[]).unwrap_err());
    assert!(e.contains("check the monitors' addresses"), "{e}");
}

/// A gateway that the cluster can't reach gets no answer at all: the lock ends by the clock.
#[test]
fn a_lock_that_is_not_confirmed_is_not_owned() {
    let fake = Fake::new();
    let image = fake.image();
    image.set_lease(Duration::from_secs(3600));
    image.lock().unwrap();
    assert_eq!(image.lock_state(), LockState::Owned);
    fake.control("lock-hangs\n");
    let asking = image.clone();
    let answer = std::thread::spawn(move || asking.lock_state());
    image.set_lease(Duration::ZERO);
    let until = |wanted: LockState| {
        let asked_at = Instant::now();
        while image.known_lock_state() != wanted {
            assert!(asked_at.elapsed() < Duration::from_secs(30), "it isn't {wanted:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until(LockState::Unconfirmed);
    assert!(!answer.is_finished());
    // The answer comes late: it says how things stand now, and the time of the question counts.
    fake.control("");
    answer.join().unwrap();
    image.set_lease(Duration::from_secs(3600));
    assert_eq!(image.lock_state(), LockState::Owned);
    // An error is no answer. A client that is blocked has none to expect.
    fake.control("lock-fails 110\n");
    assert_eq!(image.lock_state(), LockState::Owned);
    image.set_lease(Duration::ZERO);
    until(LockState::Unconfirmed);
    image.set_lease(Duration::from_secs(3600));
    fake.control("");
    assert_eq!(image.lock_state(), LockState::Owned);
    fake.control("lock-fails 108\n");
    assert_eq!(image.lock_state(), LockState::Lost);
}

#[test]
fn an_owner_whose_lock_is_broken_is_refused() {
    let fake = Fake::new();
    let mut old = fake.queue();
    old.write(1, 0, block(1)).unwrap();
    assert!(all(&mut old)[0].result.is_ok());
    let new = fake.image();
    let owner = new.owner().unwrap();
    let owner = owner.expect("the queue has the lock");
    // It may have changed hands since the owner was asked for: the other one wasn't blocked.
    let other = new.break_lock("127.0.0.1:0/1").unwrap_err().to_string();
    assert!(other.contains("it has another owner now"), "{other}");
    assert_eq!((new.owner().unwrap().as_deref(), old.image().lock_state()), (Some(&*owner), LockState::Owned));
    assert!(new.break_lock(&owner).unwrap());
    assert!(!new.break_lock(&owner).unwrap(), "nobody has it");
    new.block(&owner).unwrap();
    new.lock().unwrap();
    old.write(2, 0, block(2)).unwrap();
    assert_eq!(all(&mut old)[0].result, Err(libc::ESHUTDOWN));
    assert_eq!((old.image().lock_state(), new.lock_state()), (LockState::Lost, LockState::Owned));
    let mut out = [0; 4096];
    new.read_at(&mut out, 0).unwrap();
    assert_eq!(out, [2; 4096]);
}

/// librbd repairs a broken watch by itself. Meanwhile the lock has an earlier name of this client, or for a moment nobody.
#[test]
fn a_lock_whose_watch_is_repaired_is_not_lost() {
    let fake = Fake::new();
    let image = fake.image();
    image.lock().unwrap();
    let own = image.owner().unwrap().expect("this client");
    let repair = |answers: usize| {
        for control in [format!("lock-is {own}\n"), "lock-is 0\n".into()] {
            fake.control(&control);
            assert!((0..answers).all(|_| image.lock_state() == LockState::Owned), "{control}");
        }
        fake.control("");
        assert_eq!(image.lock_state(), LockState::Owned);
    };
    (0..5).for_each(|_| repair(4));
    // A repair doesn't confirm the lock.
    fake.control(&format!("lock-is {own}\n"));
    image.set_lease(Duration::ZERO);
    let began = Instant::now();
    while image.lock_state() != LockState::Unconfirmed {
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    image.set_lease(Duration::from_secs(3600));
    // Nobody has it, and this client doesn't get it again.
    fake.control("lock-is 0\n");
    let answers = (0..100).take_while(|_| image.lock_state() == LockState::Owned).count();
    assert!((1..100).contains(&answers) && image.lock_state() == LockState::Lost, "{answers}");
    // Another client has it: at once.
    let fake = Fake::new();
    let image = fake.image();
    image.lock().unwrap();
    fake.control("lock-is 127.0.0.1:0/77\n");
    assert_eq!(image.lock_state(), LockState::Lost);
}

#[test]
fn a_lock_that_cannot_be_had_names_its_cause() {
    let fake = Fake::new();
    for (errno, says) in
        [(30, "another client has it"), (108, "ceph osd blocklist ls"), (1, "profile rbd"), (110, "doesn't give it")]
    {
        fake.control(&format!("lock-fails {errno}\n"));
        let e = fake.image().lock().unwrap_err().to_string();
        assert!(e.contains(says) && (errno == 30 || !e.contains("another client")), "{e}");
    }
}

#[test]
fn objects_have_their_size_whatever_the_stripe_unit() {
    let fake = Fake::new();
    fake.control("stripe-unit 65536\n");
    let layout = fake.image().layout().unwrap();
    assert_eq!(layout, Some(("rbd_data.fake".into(), 2, 4 << 20)));
    assert!(!fake.image().has_parent().unwrap());
    fake.control("parent 4096\n");
    assert!(fake.image().has_parent().unwrap());
}

/// A configuration file's own policy isn't for the handle that the layers reckon with.
#[test]
fn reads_of_the_main_handle_go_to_the_primary() {
    let fake = Fake::new();
    let conf = "rbd_read_from_replica_policy = localize\ncrush_location = host=h1\n";
    std::fs::write(fake.folder.path().join("ceph.conf"), conf).unwrap();
    fake.image().read_at(&mut [0; 512], 0).unwrap();
    assert_eq!(std::fs::read_to_string(fake.folder.path().join("served")).unwrap(), "- 0\n");
}
