//! Man pages and shell completions from a command line's own definition: the hidden command `generate` of our programs.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::{Args, Command, Subcommand, ValueEnum};
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
        /// The folder to write to; made if it doesn't exist.
        dir: PathBuf,
    },
    /// Completions for each shell
    Completions {
        /// The folder to write to; made if it doesn't exist.
        dir: PathBuf,
    },
}

impl Generate {
    /// Runs the command, for the program that `command` defines.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn run(self, command: Command) -> Result<()> {
        match self.what {
            What::Man { dir } => man(command, &dir),
            What::Completions { dir } => completions(command, &dir),
        }
    }
}

fn make(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn man(command: Command, dir: &Path) -> Result<()> {
    make(dir)?;
    clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write to {}", dir.display()))
}

fn completions(mut command: Command, dir: &Path) -> Result<()> {
    make(dir)?;
    let program = command.get_name().to_string();
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut command, &program, dir)
            .with_context(|| format!("cannot write to {}", dir.display()))?;
    }
    Ok(())
}

/// Checks a program's definition: each command that people see has a page, a completion and an example.
///
/// # Panics
/// If one hasn't. This is for tests.
pub fn check(command: &Command, dir: &Path) {
    man(command.clone(), &dir.join("man")).expect("written");
    completions(command.clone(), &dir.join("complete")).expect("written");
    let mut all = Vec::new();
    commands(command, command.get_name(), &mut all);
    let bash = dir.join(format!("complete/{}.bash", command.get_name()));
    let bash = std::fs::read_to_string(bash).expect("bash has a completion");
    for name in all {
        let page = std::fs::read_to_string(dir.join(format!("man/{name}.1"))).expect(&name);
        assert!(page.contains(".TH"), "{name}");
        assert!(bash.contains(name.rsplit('-').next().expect("a name")), "{name}");
    }
    let shells = std::fs::read_dir(dir.join("complete")).expect("made").count();
    assert_eq!(shells, Shell::value_variants().len());
    command.clone().debug_assert();
}

/// The names of all commands that people see: `plimsoll`, `plimsoll-volume`, `plimsoll-volume-list`, …
fn commands(command: &Command, name: &str, all: &mut Vec<String>) {
    let after = command.get_after_help().map(|s| s.to_string()).unwrap_or_default();
    assert!(after.contains("Example"), "{name} shows no example");
    all.push(name.to_string());
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        commands(sub, &format!("{name}-{}", sub.get_name()), all);
    }
}
