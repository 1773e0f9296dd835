//! A control segment whose bytes anybody changed: whoever uses it may fail, as the shim catches, but comes to an end, and
//! never reaches beyond the mapping. Also called by `fuzz/`.

use plimsoll_base::Time;
use plimsoll_shape::control::{ControlConfig, Controller, PMode};
use plimsoll_shape::gate::{Answered, ConnId, Gate, Knobs};
use plimsoll_shape::segment::{Control, Segment, monotonic};
use plimsoll_shape::tend::Tender;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// As the shim's and the controller's.
fn quietly<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}

/// The process' own segment, its file, and its bytes as it was made.
fn made() -> &'static (Segment, File, Vec<u8>) {
    static MADE: OnceLock<(Segment, File, Vec<u8>)> = OnceLock::new();
    MADE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("plimsoll-fuzz-{}.segment", std::process::id()));
        let knobs = Knobs { p: 2, ..Knobs::default() };
        let segment = Segment::create(&path, knobs, monotonic()).expect("made");
        let file = File::options().read(true).write(true).open(&path).expect("there");
        std::fs::remove_file(&path).expect("there");
        let mut guard = segment.lock(1, monotonic());
        let (mut gate, now) = (guard.gate(), Time::from_nanos(1_000_000));
        for n in 0..6 {
            let conn = gate.open(std::process::id()).expect("room");
            let user = gate.user_of_bytes(now, &[b'a' + n % 3]).expect("room");
            gate.identify(conn, user);
            gate.request(now, conn);
        }
        drop(guard);
        let mut bytes = vec![0; file.metadata().expect("there").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("read");
        (segment, file, bytes)
    })
}

/// Changes words of the segment by `data`, then uses it as the shim and the controller do.
pub fn fuzz_one(data: &[u8]) {
    let (segment, file, bytes) = made();
    // Whatever earlier runs changed.
    file.write_all_at(bytes, 0).expect("written");
    let after_control = size_of::<Control>();
    for edit in data.chunks_exact(9) {
        let word = u32::from_le_bytes([edit[1], edit[2], edit[3], edit[4]]);
        let value = u32::from_le_bytes([edit[5], edit[6], edit[7], edit[8]]);
        let control = segment.control();
        match edit[0] {
            0 => control.rules.store(value, Ordering::Relaxed),
            1 => control.p_wanted.store(value, Ordering::Relaxed),
            2 => control.group_by.store(value, Ordering::Relaxed),
            3 => control.profile.store(value, Ordering::Relaxed),
            4 => control.pressure_milli.store(value, Ordering::Relaxed),
            5 => control.flags.store(value, Ordering::Relaxed),
            6 => control.zeta_wanted.store(value, Ordering::Relaxed),
            _ => {
                // Mostly where something is: the head, the first users and connections.
                let words = (bytes.len() - after_control) / 4;
                let word = if edit[0] & 1 == 0 { word as usize % words } else { word as usize % 1024.min(words) };
                file.write_all_at(&value.to_le_bytes(), (after_control + word * 4) as u64).expect("written");
            }
        }
    }
    let use_it = || {
        let now = Time::from_nanos(3_000_000_000);
        let step = |f: &mut dyn FnMut(&mut Gate<'_>)| quietly(|| f(&mut segment.lock(1, now).gate()));
        let mut opened = None;
        step(&mut |g| opened = g.open(7));
        for conn in [opened.unwrap_or(ConnId(0)), ConnId(1), ConnId(5), ConnId(16_383)] {
            step(&mut |g| {
                let user = g.user_of_bytes(now, b"x");
                user.into_iter().for_each(|u| g.identify(conn, u));
            });
            step(&mut |g| _ = g.request(now, conn));
            step(&mut |g| g.request_urgent(now, conn));
            step(&mut |g| g.answered(now, conn, Answered::Open));
            step(&mut |g| g.answered(now, conn, Answered::Done));
            step(&mut |g| _ = (g.is_waiting(conn), g.is_oldest(conn), g.is_inside(conn)));
            step(&mut |g| _ = g.cancel(now, conn));
        }
        step(&mut |g| g.tick(now));
        step(&mut |g| while g.take_grant().is_some() {});
        step(&mut |g| _ = g.known_users().iter().map(|u| u.name().len()).sum::<usize>());
        quietly(|| segment.lock(1, now).rules().len());
        let controller = Controller::new(ControlConfig::new(PMode::Fixed(4)), 4);
        let mut tender = Tender::new(segment, controller);
        (0..3).for_each(|_| drop(quietly(|| tender.look(segment, 1, now))));
        step(&mut |g| g.close(now, opened.unwrap_or(ConnId(2))));
    };
    use_it();
    quietly(|| segment.lock(1, monotonic()).gate().repair(monotonic()));
    use_it();
}
