//! Deadlines of files, by folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadlines by folder, the longest first.
pub struct Rules(Vec<(PathBuf, Option<Duration>)>);

impl Rules {
    /// The environment's; `None`: nothing is to be done in this process. `say` takes what is wrong with them.
    pub fn of_environment(say: impl Fn(String)) -> Option<Rules> {
        let rules = std::env::var("PLIMSOLL_DEADLINES").ok()?;
        if let Ok(processes) = std::env::var("PLIMSOLL_DEADLINE_PROCESSES") {
            let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
            if !processes.split(',').any(|p| p.trim() == command.trim()) {
                return None;
            }
        }
        match Rules::parse(&rules) {
            Ok(rules) => Some(rules),
            Err(e) => {
                say(format!("PLIMSOLL_DEADLINES: {e}: reads go on without deadlines"));
                None
            }
        }
    }

    fn parse(text: &str) -> Result<Rules, String> {
        let mut rules = Vec::new();
        for rule in text.split(';').filter(|r| !r.trim().is_empty()) {
            let (folder, time) = rule.rsplit_once('=').ok_or_else(|| format!("`{rule}` isn't FOLDER=TIME"))?;
            let folder = Path::new(folder.trim());
            if !folder.is_absolute() {
                return Err(format!("`{}` isn't an absolute path", folder.display()));
            }
            // The kernel names files by their real paths.
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
            rules.push((folder, time_of(time.trim())?));
        }
        rules.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.as_os_str().len()));
        Ok(Rules(rules))
    }

    /// The deadline of a file.
    pub fn deadline(&self, file: &Path) -> Option<Duration> {
        self.0.iter().find(|(folder, _)| file.starts_with(folder)).and_then(|(_, deadline)| *deadline)
    }
}

fn time_of(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    let bad = || format!("`{text}` is no time: 500us, 20ms, 1s or off");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let us = match &text[digits..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => return Err(bad()),
    };
    Ok(Some(Duration::from_micros(number.checked_mul(us).ok_or_else(bad)?)))
}
