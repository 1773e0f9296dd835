//! A panic in any thread ends the process.
//!
//! Threads hold parts of one state. Without one of them the node would accept clients and answer none, or serve without its
//! tape, its metrics, its handshakes. A panic also means that an invariant is broken, so the state in memory isn't trusted. The process
//! aborts, without a flush. Its supervisor starts it again. Recovery, which the crash tests exercise thousands of times, restores all
//! that was acknowledged as durable. Rejected: opening the one pool again inside the process, a second way to start that nothing else
//! would exercise.

use std::io::Write;

/// From now on, a panic in any thread aborts the process, after saying where and why.
pub fn end_the_process() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        say(info);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name");
        // Whoever reads it may have gone.
        let _ = writeln!(
            std::io::stderr(),
            "plimsoll: thread {thread} panicked, which is a bug: please report what it said. The process ends without a \
             flush; start it again, and recovery brings back what was durable"
        );
        std::process::abort();
    }));
}

/// A place where tests end a thread: it panics once the file exists that `PLIMSOLL_TEST_PANIC=THREAD:FILE` names. Only
/// builds with debug assertions have such places.
#[cfg(debug_assertions)]
pub fn point(thread: &str) {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    static ASKED: OnceLock<Option<(String, PathBuf)>> = OnceLock::new();
    let asked = ASKED.get_or_init(|| {
        let text = std::env::var("PLIMSOLL_TEST_PANIC").ok()?;
        let (thread, file) = text.split_once(':')?;
        Some((thread.to_string(), file.into()))
    });
    if let Some((asked, file)) = asked
        && asked == thread
    {
        assert!(!file.exists(), "a test ends this thread ({thread})");
    }
}

/// Nothing: this build has no such places.
#[cfg(not(debug_assertions))]
pub fn point(_: &str) {}
