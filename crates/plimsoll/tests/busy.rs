//! Fast rejection, live: who predicts, what is refused, and how soon; on devices modelled in real time.
//!
//! The tests judge what is decided, never how long the machine took: that is `make busy`'s.

mod common;
use common::busy::{BYTES, DISK, Metrics, NOISE, Noise, await_inside, busy_wait_us, config, noisy_disk};
use common::client::Client;
use common::{Server, write_profile};
use plimsoll_base::Span;
use plimsoll_nbd::wire::{Command, CommandFlags};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// A volume on a disk with a queue, read with a deadline: refused, with a wait that the queue explains; nothing of the refused
/// reads is inside; and without noise the same deadline is kept.
#[test]
fn a_queue_of_noise_is_told_to_who_has_a_deadline_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = noisy_disk(dir.path());
    let before = Metrics::of(&server);
    assert_eq!(before.value("plimsoll_predictor_profiled"), 1.0);
    let mut web = Client::connect(&server.socket(), "vol?deadline=100ms&busy=error").unwrap();
    assert!(web.read(0, 4096).unwrap().is_ok(), "nobody else is there");
    let noise = [Noise::start(&server, "vol?tenant=noise", 60, 1), Noise::start(&server, "vol?tenant=noise", 60, 2)];
    await_inside(&server, 110.0);
    for n in 0..50u64 {
        let ended = web.read(n * (BYTES / 50) / 4096 * 4096, 4096).unwrap();
        let wait = busy_wait_us(&ended).unwrap_or_else(|| panic!("read {n} wasn't refused: {:?}", ended.err()));
        // 118 to 120 random reads of a disk that does some hundred a second.
        assert!((100_000..3_000_000).contains(&wait), "{wait} us");
    }
    let after = Metrics::of(&server);
    assert_eq!(after.value("plimsoll_pool_refused_total"), 50.0);
    let queued = after.value("plimsoll_queue_depth");
    assert!(queued <= 120.0, "{queued} requests are inside, and no more than the noise's are anybody's");
    let mut patient = Client::connect(&server.socket(), "vol?deadline=1h").unwrap();
    assert!(patient.read(0, 4096).unwrap().is_ok(), "an hour is enough");
    // Where requests wait, and whose: the noise in the scheduler, all but the four at the disk.
    let now = Metrics::of(&server);
    let inside = |at| now.of_tenant("plimsoll_requests_inside", "noise", ("at", at));
    assert!(inside("noop") > 90.0 && inside("model") <= 4.0, "{} and {}", inside("noop"), inside("model"));
    assert!(now.of_tenant("plimsoll_oldest_age_seconds", "noise", ("volume", "vol")) > 0.0);
    let waited = |tenant| now.of_tenant("plimsoll_wait_seconds_total", tenant, ("layer", "noop"));
    assert!(waited("web") > 0.1, "one read waited behind a hundred: {} s", waited("web"));
    assert!(waited("noise") > waited("web"), "{} s", waited("noise"));
    assert_eq!(now.of_tenant("plimsoll_wait_seconds_total", "noise", ("layer", "model")), 0.0);
    drop(noise);
}

/// Runs `plimsoll read` through a socket that keeps what the node says: what the command printed, and the waits in microseconds that the
/// refusals carried.
fn read_overheard(server: &Server, arguments: &str) -> (String, Vec<u64>) {
    let overheard = server.dir.join("overheard.sock");
    let _ = std::fs::remove_file(&overheard); // of the run before
    let (listener, node) = (UnixListener::bind(&overheard).unwrap(), server.socket());
    let between = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut node = UnixStream::connect(node).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), node.try_clone().unwrap());
        let asked = std::thread::spawn(move || {
            std::io::copy(&mut from, &mut to).unwrap();
            to.shutdown(Shutdown::Write).unwrap();
        });
        let (mut said, mut part) = (Vec::new(), [0; 4096]);
        while let n @ 1.. = node.read(&mut part).unwrap() {
            said.extend_from_slice(&part[..n]);
            if client.write_all(&part[..n]).is_err() {
                break; // it has all that it waited for
            }
        }
        asked.join().unwrap();
        said
    });
    let uri = format!("nbd+unix:///vol?socket={}", overheard.display());
    let arguments: Vec<&str> = ["read", &uri, "--connections", "1"].into_iter().chain(arguments.split(' ')).collect();
    let printed = common::ok(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
    let said = String::from_utf8_lossy(&between.join().unwrap()).into_owned();
    let waits = said.split("busy: predicted wait ").skip(1);
    (printed, waits.map(|rest| rest.split_once(" us, confidence ").unwrap().0.parse().unwrap()).collect())
}

/// The terminal shows each Busy with the wait that its reply carried, and the time in all that the deadline is shorter than: behind a
/// queue, and on an idle disk, where nothing is waited for.
#[test]
fn the_terminal_shows_the_predicted_wait_of_each_busy() {
    let dir = tempfile::tempdir().unwrap();
    let server = noisy_disk(dir.path());
    let in_order = |printed: &str, waits: &[u64]| {
        assert_eq!(waits.len(), 20, "each is refused: {printed}");
        for ((number, line), wait) in printed.lines().enumerate().zip(waits) {
            let shown = format!("{number:>5}  busy, wait about {}, ", Span::from_micros(*wait));
            assert!(line.starts_with(&shown) && line.contains(" in all (confidence "), "{line}, not {shown}");
        }
    };
    let as_json = |printed: &str, waits: &[u64], deadline_us: u64| {
        let answers: Vec<Value> = serde_json::from_str(printed).unwrap();
        let shown = |key: &str| answers.iter().map(|a| a[key].as_u64().unwrap()).collect::<Vec<u64>>();
        assert_eq!(shown("predicted_wait_us"), waits);
        for (in_all, wait) in shown("forecast_us").into_iter().zip(waits) {
            assert!(in_all > deadline_us && in_all >= *wait, "{wait} us of {in_all} us");
        }
    };
    let (printed, waits) = read_overheard(&server, "--deadline 10us --rate 1000 --count 20");
    in_order(&printed, &waits);
    let (printed, waits) = read_overheard(&server, "--deadline 10us --rate 1000 --count 20 --json");
    as_json(&printed, &waits, 10);
    let noise = [Noise::start(&server, "vol?tenant=noise", 60, 1), Noise::start(&server, "vol?tenant=noise", 60, 2)];
    await_inside(&server, 110.0);
    let (printed, waits) = read_overheard(&server, "--deadline 100ms --rate 1000 --count 20");
    in_order(&printed, &waits);
    assert!(waits.iter().all(|us| *us > 100_000), "118 to 120 reads are in front: {waits:?}");
    assert!(printed.ends_with("with a deadline of 100ms: 0 in time, 0 late, 20 busy\n"), "{printed}");
    let (printed, waits) = read_overheard(&server, "--deadline 100ms --rate 1000 --count 20 --json");
    as_json(&printed, &waits, 100_000);
    drop(noise);
}

/// Reads of ordinary clients that would be late: served late where they wait, and counted as such; an error where that was asked
/// for, by the name, the tenant, or the volume, also live.
#[test]
fn a_late_read_of_an_ordinary_client_waits_unless_the_error_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    write_profile(dir.path(), "hdd-160g-7200", "disk.profile");
    let pool = format!("{DISK}\ndepth = 4\nprofile = \"disk.profile\"");
    let strict = "[[tenant]]\nname = \"strict\"\nclass = \"best-effort\"\ndeadline = \"100ms\"\nbusy = \"error\"\n";
    let server = Server::start(dir.path(), &config(&pool, &format!("deadline = \"100ms\"\n{NOISE}{strict}"), "48GiB"));
    let noise = [Noise::start(&server, "vol?tenant=noise", 120, 1)];
    await_inside(&server, 110.0);
    let mut at = 0;
    let mut ends = |export: &str| {
        at += 1 << 20;
        let ended = Client::connect(&server.socket(), export).unwrap().read(at, 4096).unwrap();
        ended.map(drop).map_err(|why| assert!(why.contains("busy: predicted wait"), "{why}"))
    };
    for export in ["vol", "vol?deadline=100ms", "vol?deadline=100ms&busy=wait", "vol?tenant=strict&busy=wait"] {
        assert_eq!(ends(export), Ok(()), "{export}");
    }
    for export in ["vol?busy=error", "vol?deadline=100ms&busy=error", "vol?tenant=strict"] {
        assert_eq!(ends(export), Err(()), "{export}");
    }
    server.cli(&["volume", "deadline", "vol", "90ms"]);
    assert_eq!(ends("vol"), Ok(()));
    server.cli(&["volume", "deadline", "vol", "90ms", "--busy", "error"]);
    assert_eq!([ends("vol"), ends("vol?deadline=100ms")], [Err(()), Ok(())]);
    server.cli(&["volume", "deadline", "vol", "80ms"]);
    assert_eq!(ends("vol"), Err(()), "what isn't said stays");
    assert!(server.cli_fails(&["volume", "deadline", "vol", "none", "--busy", "error"]).contains("send one of them"));
    let m = Metrics::of(&server);
    let counted = |result| m.of_tenant("plimsoll_deadlines_total", "web", ("result", result));
    assert_eq!((counted("waited"), counted("missed")), (5.0, 0.0), "late as forecast is no broken promise");
    assert_eq!(m.value("plimsoll_pool_refused_total"), 5.0);
    let shown: Value = serde_json::from_str(&server.cli(&["volume", "show", "vol", "--json"])).unwrap();
    let reads = json!({"kept": 0, "missed": 0, "waited": 6, "refused": 5});
    assert_eq!(shown["traffic"]["promised"]["last_day"], reads, "of both tenants");
    drop(noise);
}

/// An export's description says what its reads are promised: as configured, as its name asks for, and as it was last changed live,
/// until something else is configured.
#[test]
fn an_exports_description_has_its_promise() {
    let dir = tempfile::tempdir().unwrap();
    let device = "device = { file = \"d.img\", size = \"64MiB\" }";
    let configured = config(device, "deadline = \"50ms\"", "16MiB");
    let said = |server: &Server, export: &str| {
        let opened = Client::once_served(&server.socket(), export).opened;
        opened.description.unwrap().trim_start_matches("ready of tenant web, ").to_string()
    };
    let server = Server::start(dir.path(), &configured);
    assert_eq!(said(&server, "vol"), "deadline 50.0ms, busy=wait");
    assert_eq!(said(&server, "vol?deadline=5ms&busy=error"), "deadline 5.00ms, busy=error");
    server.cli(&["volume", "deadline", "vol", "9ms", "--busy", "error"]);
    assert!(server.stop());
    let server = Server::start(dir.path(), &configured);
    assert_eq!(said(&server, "vol"), "deadline 9.00ms, busy=error");
    assert!(server.stop());
    let other = configured.replace("[[volume]]\n", "[[volume]]\ndeadline = \"7ms\"\nbusy = \"error\"\n");
    let server = Server::start(dir.path(), &other);
    assert_eq!(said(&server, "vol"), "deadline 7.00ms, busy=error");
    server.cli(&["volume", "deadline", "vol", "7ms", "--busy", "wait"]);
    assert!(server.stop());
    let server = Server::start(dir.path(), &other);
    assert_eq!(said(&server, "vol"), "deadline 7.00ms, busy=wait");
    assert!(server.stop());
    let server = Server::start(dir.path(), &other.replace("busy = \"error\"\n", ""));
    assert_eq!(said(&server, "vol"), "deadline 7.00ms, busy=wait", "as configured by now");
    assert!(server.stop());
}

/// A read that has no permit before its deadline has passed waits on, if its client does.
#[test]
fn a_read_that_waited_for_a_permit_beyond_its_deadline_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let pool = "device = { file = \"d.img\", size = \"128MiB\", model = \"cheetah-15k5\" }\ndepth = 1";
    let server = Server::start(dir.path(), &config(pool, "deadline = \"1ms\"\njobs_max = 1\n", "64MiB"));
    let mut clients = [0, 1].map(|_| Client::connect(&server.socket(), "vol").unwrap());
    for n in 0..20u64 {
        for (i, c) in clients.iter_mut().enumerate() {
            let offset = ((n * 2 + i as u64) * 7 % 60) << 20;
            c.send(Command::Read, CommandFlags::EMPTY, offset, 4096, &[]).unwrap();
        }
    }
    for c in &mut clients {
        (0..20).for_each(|n| assert!(c.receive().unwrap().1.is_ok(), "read {n}"));
    }
    let m = Metrics::of(&server);
    let counted = |result| m.of_tenant("plimsoll_deadlines_total", "web", ("result", result));
    assert_eq!(counted("waited") + counted("missed") + counted("met"), 40.0);
    assert!(counted("waited") >= 20.0, "only {} of 40 are known to wait", counted("waited"));
    let mut told = Client::connect(&server.socket(), "vol?busy=error").unwrap();
    for n in 0..20u64 {
        told.send(Command::Read, CommandFlags::EMPTY, n << 20, 4096, &[]).unwrap();
    }
    let busy = (0..20).filter(|_| busy_wait_us(&told.receive().unwrap().1).is_some()).count();
    assert!(busy >= 15, "{busy} of 20 were told: there is one permit");
}

/// Until so many of their requests are done.
fn await_done(noise: &[Noise], least: u64) {
    let begun = Instant::now();
    while noise.iter().map(Noise::done).sum::<u64>() < least {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} of {least} done",
            noise.iter().map(Noise::done).sum::<u64>()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The share of the device follows the tenants' weights.
#[test]
fn weights_share_the_device_under_cfq() {
    let dir = tempfile::tempdir().unwrap();
    let tenants = "weight = 400\n[[tenant]]\nname = \"noise\"\nclass = \"best-effort\"\nweight = 100\n";
    let pool = format!("{DISK}\nsched = \"cfq\"\ndepth = 1");
    let server = Server::start(dir.path(), &config(&pool, tenants, "48GiB"));
    let noise = [Noise::start(&server, "vol", 64, 1), Noise::start(&server, "vol?tenant=noise", 64, 2)];
    await_done(&noise, 400);
    let (web, other) = (noise[0].done(), noise[1].done());
    assert!(web > 2 * other && web < 10 * other.max(1), "400 to 100 gave {web} to {other}");
}

/// Flash whose inside is seen, and a device whose inside isn't, chosen by name; without a profile they say that they learn.
#[test]
fn each_predictor_can_be_chosen_and_says_what_it_rests_on() {
    for (sched, model, profile) in [
        ("noop", "cheetah-15k5", None),
        ("blackbox", "nvme-modern", None),
        ("ssd", "mittos-openchannel", None),
        ("ssd", "mittos-openchannel", Some("flash.profile")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = format!(
            "device = {{ file = \"d.img\", size = \"256MiB\", model = \"{model}\" }}\nsched = \"{sched}\"\ndepth = 1"
        );
        if let Some(name) = profile {
            write_profile(dir.path(), model, name);
            pool += &format!("\nprofile = \"{name}\"");
        }
        let server = Server::start(dir.path(), &config(&pool, "", "64MiB"));
        let mut client = Client::connect(&server.socket(), "vol?deadline=1h").unwrap();
        for n in 0..100u64 {
            client.read(n * 524_288, 4096).unwrap().unwrap();
        }
        let m = Metrics::of(&server);
        assert_eq!(m.label("plimsoll_predictor_profiled", "predictor"), sched);
        assert_eq!(
            m.value("plimsoll_predictor_profiled"),
            f64::from(u8::from(profile.is_some())),
            "{sched} {profile:?}"
        );
        assert!(m.value("plimsoll_predictor_learned_total") >= 100.0, "{sched}");
        let sure = m.value("plimsoll_predictor_confidence");
        assert!(sure > 0.0 && sure <= 1.0, "{sched}: {sure}");
        // What it has learned is used: behind a queue a microsecond and the hop are too short for any read.
        let noise = [1, 2].map(|seed| Noise::within(64 << 20, &server, "vol", 60, seed));
        await_done(&noise, 200);
        await_inside(&server, 90.0);
        let mut hurried = Client::connect(&server.socket(), "vol?deadline=1us&busy=error").unwrap();
        let refused = (0..50u64)
            .filter(|n| busy_wait_us(&hurried.read(n * 524_288 + 262_144, 65_536).unwrap()).is_some())
            .count();
        assert!(refused > 25, "{sched} {profile:?}: {refused} of 50 refused");
    }
}

/// A real file is measured, and its pool predicts by what was measured; the check tells another file apart.
#[test]
fn a_real_file_is_profiled_for_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let with =
        |rest: &str| config(&format!("device = {{ file = \"d.img\", size = \"256MiB\" }}\n{rest}"), "", "128MiB");
    assert!(Server::start(dir.path(), &with("")).stop(), "it makes its device");
    let file = dir.path().join("d.img");
    write_profile(dir.path(), file.to_str().unwrap(), "d.profile");
    let server = Server::start(dir.path(), &with("profile = \"d.profile\""));
    let mut client = Client::connect(&server.socket(), "vol?deadline=10s").unwrap();
    client.write(0, &[7; 8192]).unwrap().unwrap();
    assert!(client.read(0, 8192).unwrap().unwrap() == [7; 8192]);
    assert_eq!(Metrics::of(&server).value("plimsoll_predictor_profiled"), 1.0);
    drop(server);
    std::fs::write(dir.path().join("other.img"), vec![0; 80 << 20]).unwrap();
    let other = dir.path().join("other.img");
    let check = ["profile", other.to_str().unwrap(), "--check", dir.path().join("d.profile").to_str().unwrap()]
        .map(String::from);
    let check: Vec<&str> = check.iter().map(String::as_str).collect();
    let out = common::run(env!("CARGO_BIN_EXE_plimsoll"), &check);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("is the profile of another device") && said.contains("64 places of it are zero"), "{said}");
}

#[test]
fn a_profile_that_does_not_fit_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    write_profile(dir.path(), "cheetah-15k5", "disk.profile");
    write_profile(dir.path(), "mittos-openchannel", "flash.profile");
    let whole = std::fs::read_to_string(dir.path().join("disk.profile")).unwrap();
    std::fs::write(dir.path().join("cut.profile"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(dir.path().join("old.profile"), whole.replacen("version = 1", "version = 9", 1)).unwrap();
    let disk = |model: &str, rest: &str| {
        format!("device = {{ file = \"{model}.img\", size = \"128MiB\", model = \"{model}\" }}\n{rest}")
    };
    for (pool, says) in [
        (disk("hdd-160g-7200", "profile = \"disk.profile\""), "is the profile of another device: `cheetah-15k5`"),
        (disk("cheetah-15k5", "profile = \"cut.profile\""), "may be cut short"),
        (disk("cheetah-15k5", "profile = \"old.profile\""), "is a profile of version 9"),
        (disk("cheetah-15k5", "profile = \"none.profile\""), "cannot be read"),
        (disk("cheetah-15k5", "profile = \"flash.profile\""), "is the profile of another device"),
        (disk("cheetah-15k5", "sched = \"ssd\""), "only a modelled one shows"),
        (disk("mittos-openchannel", "sched = \"ssd\"\nprofile = \"disk.profile\""), "has no `flash` part"),
        (disk("nvme-modern", "sched = \"ssd\"\nprofile = \"flash.profile\""), "is the profile of another device"),
        (
            disk("mittos-openchannel-code", "sched = \"ssd\"\nprofile = \"flash.profile\""),
            "is the profile of another device: `mittos-openchannel`, and this one is a `mittos-openchannel-code`",
        ),
    ] {
        let Err(error) = Server::try_start(dir.path(), &config(&pool, "", "64MiB")) else { panic!("started: {pool}") };
        assert!(error.contains(says), "{pool}: {error}");
    }
}

/// Reads of what was read or written are answered from memory, with the bytes that were written last.
#[test]
fn a_page_cache_answers_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    let pool = "device = { file = \"d.img\", size = \"128MiB\" }\nmemory = \"1MiB\"";
    let server = Server::start(dir.path(), &config(pool, "", "64MiB"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let mut truth = vec![0u8; 4 << 20];
    let mut state = 7u64;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for round in 0..1500u64 {
        let len = 1 + draw(20_000);
        let offset = draw((truth.len() as u64 - len).min(if round % 2 == 0 { 300_000 } else { u64::MAX }));
        let (from, to) = (offset as usize, (offset + len) as usize);
        match draw(6) {
            0 | 1 => {
                truth[from..to].fill(round as u8);
                client.write(offset, &truth[from..to]).unwrap().unwrap();
            }
            2 => {
                truth[from..to].fill(0);
                let ended = client.call(Command::WriteZeroes, CommandFlags::EMPTY, offset, len as u32, &[]);
                ended.unwrap().unwrap();
            }
            _ => {
                let got = client.read(offset, len as u32).unwrap().unwrap();
                assert!(got == truth[from..to], "round {round}: {from}..{to}");
            }
        }
    }
    let m = Metrics::of(&server);
    assert!(m.value("plimsoll_memory_hits_total") > 50.0, "{}", m.value("plimsoll_memory_hits_total"));
    assert!(m.value("plimsoll_memory_misses_total") > 50.0);
    assert!(m.value("plimsoll_memory_bytes") <= f64::from(1 << 20));
    assert!(server.stop(), "it ends in order");
}

/// A percentile's budget lets late reads in; a deadline that sets itself becomes shorter than its first.
#[test]
fn budgets_and_automatic_deadlines_are_configured() {
    let dir = tempfile::tempdir().unwrap();
    let pool = "device = { file = \"d.img\", size = \"128MiB\", model = \"cheetah-15k5\" }\ndepth = 1";
    let tenants = "deadline = \"1us\"\nbusy = \"error\"\ndeadline_percentile = 60\n[[tenant]]\nname = \"auto\"\nclass = \"best-effort\"\n\
                   auto_deadline = { refuse_percent = 50, least = \"1ms\", most = \"1s\" }\n";
    let server = Server::start(dir.path(), &config(pool, tenants, "64MiB"));
    let mut web = Client::connect(&server.socket(), "vol").unwrap();
    let mut auto = Client::connect(&server.socket(), "vol?tenant=auto").unwrap();
    let mut refused = 0;
    for n in 0..200u64 {
        auto.read(n * 262_144, 4096).unwrap().unwrap();
        let mut patient = Client::connect(&server.socket(), "vol?deadline=1h").unwrap();
        patient.read(n * 262_144 + 8192, 4096).unwrap().unwrap();
        refused += u32::from(busy_wait_us(&web.read((199 - n) * 262_144 + 4096, 4096).unwrap()).is_some());
    }
    let m = Metrics::of(&server);
    let (reads, slow) = (m.value("plimsoll_budget_reads"), m.value("plimsoll_budget_slow"));
    let let_in = m.value("plimsoll_budget_admitted_late_total");
    assert!(let_in > 20.0 && refused > 20, "{let_in} let in, {refused} refused of 200");
    assert!(slow <= reads * 0.4 + 1.0, "{slow} of {reads} were slow");
    let deadline = m.value("plimsoll_auto_deadline_seconds");
    assert!(deadline < 0.9, "the deadline found nothing shorter than a second: {deadline}");
}
