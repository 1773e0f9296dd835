//! Deadlines of files, by folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadlines of this program's reads.
pub struct Rules {
    /// By folder, the longest first.
    folders: Vec<(PathBuf, Option<Duration>)>,
    /// Beginnings of the titles of processes that have them; empty: all.
    titles: Vec<String>,
    /// Pages that were never in memory are refused, too.
    pub refuse_first: bool,
}

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
        let titles = parts(&std::env::var("PLIMSOLL_DEADLINE_TITLES").unwrap_or_default());
        let made = Rules::parse(&rules).map_err(|e| format!("PLIMSOLL_DEADLINES: {e}")).and_then(|folders| {
            let refuse_first = match std::env::var("PLIMSOLL_DEADLINE_FIRST").as_deref() {
                Ok("refuse") => true,
                Ok("read") | Err(_) => false,
                Ok(other) => return Err(format!("PLIMSOLL_DEADLINE_FIRST: `{other}` is neither read nor refuse")),
            };
            Ok(Rules { folders, titles, refuse_first })
        });
        made.map_err(|e| say(format!("{e}: reads go on without deadlines"))).ok()
    }

    fn parse(text: &str) -> Result<Vec<(PathBuf, Option<Duration>)>, String> {
        let mut rules = Vec::new();
        for rule in parts(text) {
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
        Ok(rules)
    }

    /// True if a process's title can decide.
    pub fn has_titles(&self) -> bool {
        !self.titles.is_empty()
    }

    /// True if a process with this title has deadlines. A title begins with whole words of a rule's: a role `app` isn't `apple`.
    pub fn is_for(&self, title: &str) -> bool {
        let begins = |with: &String| {
            title.strip_prefix(with.as_str()).is_some_and(|rest| matches!(rest.chars().next(), None | Some(' ')))
        };
        !self.has_titles() || self.titles.iter().any(begins)
    }

    /// The deadline of a file.
    pub fn deadline(&self, file: &Path) -> Option<Duration> {
        self.folders.iter().find(|(folder, _)| file.starts_with(folder)).and_then(|(_, deadline)| *deadline)
    }
}

/// Parts of a text, separated by `;`.
fn parts(text: &str) -> Vec<String> {
    text.split(';').map(|part| part.trim().to_string()).filter(|part| !part.is_empty()).collect()
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
