//! Open transactions as the server itself reports them. The distribution's own client asks over a unix socket, which the gate never holds.

use super::Server;
use plimsoll_shape::walk::Protocol;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

/// MariaDB's table is made anew after a tenth of a second.
const LOOK: Duration = Duration::from_millis(105);
/// Fewer looks have seen nothing.
const LOOKS_MIN: u32 = 3;

struct Observer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    question: &'static str,
}

impl Observer {
    fn of(s: &Server) -> Observer {
        let dir = s.dir.path().display().to_string();
        let mut c = Command::new("stdbuf");
        c.arg("-oL");
        let question = if s.protocol == Protocol::Postgres {
            c.args([
                "psql",
                "--no-psqlrc",
                "-Atq",
                "-U",
                "root",
                "-d",
                "t",
                "-h",
                &dir,
                "-p",
                &s.server_port.to_string(),
            ]);
            // Backends are looked at one after the other: whoever had begun before that and hasn't ended was open when it began.
            "SELECT count(*) FROM pg_stat_activity WHERE xact_start < statement_timestamp() AND backend_type = 'client backend' \
             AND pid <> pg_backend_pid();"
        } else {
            c.args(["mariadb", "--no-defaults", "--user=root", "--skip-column-names", "--batch", "--unbuffered"]);
            c.arg(format!("--socket={dir}/sock"));
            "SELECT COUNT(*) FROM information_schema.innodb_trx;"
        };
        let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`make test` installs it");
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Observer { child, to, from, question }
    }

    fn open(&mut self) -> u32 {
        writeln!(self.to, "{}", self.question).unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

/// Calls `f`. Returns its result and the largest number of transactions that the server had open meanwhile.
pub fn most_open<T>(s: &Server, f: impl FnOnce() -> T) -> (T, u32) {
    let mut observer = Observer::of(s);
    observer.open(); // it is connected before there is something to see
    let done = AtomicBool::new(false);
    scope(|scope| {
        let watch = scope.spawn(|| {
            let (mut most, mut looks) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                most = most.max(observer.open());
                looks += 1;
                sleep(LOOK);
            }
            assert!(looks >= LOOKS_MIN, "{looks} looks");
            most
        });
        // However it ends, the watch must.
        let out = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        done.store(true, Ordering::Relaxed);
        let most = watch.join().unwrap();
        (out.unwrap_or_else(|failed| std::panic::resume_unwind(failed)), most)
    })
}

/// The server had no more open than P and those that an escape let in.
pub fn assert_capped(s: &Server, most: u32, p: u32) {
    let c = s.counters();
    let escaped = c.lent + c.stall_escapes + c.hold_escapes + c.opened;
    assert!((1..=u64::from(p) + escaped).contains(&u64::from(most)), "{most} open, P = {p}: {c:?}");
}
