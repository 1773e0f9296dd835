//! `plimsoll generate …`: man pages and shell completions from the command line's own definition.

use crate::Cli;
use anyhow::{Context, Result};
use clap::{Args, CommandFactory, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// Write man pages or shell completions.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll generate man target/man")]
pub struct Generate {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A man page for each command
    Man {
        /// Where to; made if it doesn't exist.
        dir: PathBuf,
    },
    /// Completions for each shell
    Completions {
        /// Where to; made if it doesn't exist.
        dir: PathBuf,
    },
}

impl Generate {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.what {
            What::Man { dir } => man(&dir),
            What::Completions { dir } => completions(&dir),
        }
    }
}

fn make(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn man(dir: &Path) -> Result<()> {
    make(dir)?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(|| format!("cannot write to {}", dir.display()))
}

fn completions(dir: &Path) -> Result<()> {
    make(dir)?;
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut Cli::command(), "plimsoll", dir)
            .with_context(|| format!("cannot write to {}", dir.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all commands that people see: `plimsoll`, `plimsoll-volume`, `plimsoll-volume-list`, …
    fn commands(command: &clap::Command, name: &str, all: &mut Vec<String>) {
        all.push(name.to_string());
        for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
            commands(sub, &format!("{name}-{}", sub.get_name()), all);
        }
    }

    #[test]
    fn every_command_has_a_page_and_a_completion() {
        let dir = tempfile::tempdir().unwrap();
        man(&dir.path().join("man")).unwrap();
        completions(&dir.path().join("complete")).unwrap();
        let mut all = Vec::new();
        commands(&Cli::command(), "plimsoll", &mut all);
        assert!(all.len() > 12, "{all:?}");
        let bash = std::fs::read_to_string(dir.path().join("complete/plimsoll.bash")).unwrap();
        for name in all {
            let page = std::fs::read_to_string(dir.path().join(format!("man/{name}.1"))).expect(&name);
            assert!(page.contains(".TH"), "{name}");
            assert!(bash.contains(name.rsplit('-').next().unwrap()), "{name}");
        }
        let shells = std::fs::read_dir(dir.path().join("complete")).unwrap().count();
        assert_eq!(shells, Shell::value_variants().len());
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            let after = command.get_after_help().map(|s| s.to_string()).unwrap_or_default();
            assert!(after.contains("Example"), "{} shows no example", command.get_name());
            command.get_subcommands().filter(|s| !s.is_hide_set()).for_each(check);
        }
        check(&Cli::command());
        Cli::command().debug_assert();
    }
}
