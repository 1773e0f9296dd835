//! Any text is a configuration, or is refused with its line: also called by `fuzz/`.

use plimsoll_node::config::Config;
use std::path::Path;

/// Reads `data` as a configuration.
///
/// # Panics
/// If an error says nothing, or names a line that isn't there.
pub fn fuzz_one(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(e) = Config::parse(text, Path::new("/etc/plimsoll/node.toml")) {
        assert!(!e.0.is_empty());
        for e in e.0 {
            assert!(!e.what.is_empty());
            assert!(e.line <= text.lines().count() + 1, "line {} of {}", e.line, text.lines().count());
            assert!(e.to_string().contains("node.toml"));
        }
    }
}
