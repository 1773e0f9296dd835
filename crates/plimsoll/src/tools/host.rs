//! `plimsoll host`: the agent of host mode, what it knows, how good its forecasts are, and who makes whom wait.

mod check;
mod status;
mod top;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use plimsoll_host::agent::{Access, Agent, Change, Handout, StartError, TICK, Wanted};
use plimsoll_host::disk;
use plimsoll_host::forecast::Costs;
use plimsoll_host::link::SOCKET;
use plimsoll_sched::profile::Profile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::signal::unix::{SignalKind, signal};

/// Forecast this machine's disks, so that programs can read files with deadlines
///
/// BPF programs see what each disk is given and ends. Any program that may open the socket can then ask for a read with a deadline
/// (libplimsoll_host_c, libplimsoll_deadline.so): one that would be late is refused at once. Needs CAP_BPF and CAP_PERFMON, nothing else.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    after_help = "Examples:\n  plimsoll host --group storage\n  plimsoll host status\n  plimsoll host check sda --for 60s\n  plimsoll host top --once"
)]
pub struct Host {
    #[command(subcommand)]
    command: Option<HostCommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum HostCommand {
    /// Show the disks that the agent watches, their load and what a read would take
    Status(status::Status),
    /// Compare forecasts with what reads take, and count what deadlines would have refused
    Check(check::Check),
    /// Watch who makes whom wait, by process and control group
    Top(top::Top),
}

#[derive(Args)]
struct RunArgs {
    /// Watch this disk only, by name, path, partition or a file on it; may be repeated [default: all disks].
    #[arg(long = "disk", value_name = "DISK")]
    disks: Vec<String>,
    /// Socket at which programs are given the forecasts.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Let this group's members open the socket, by name or number [default: the agent's user only].
    #[arg(long, value_name = "GROUP", conflicts_with = "everyone")]
    group: Option<String>,
    /// Let everyone open the socket: they see how busy each disk is.
    #[arg(long)]
    everyone: bool,
    /// Begin with costs that `plimsoll profile` measured, as DISK=FILE; may be repeated.
    #[arg(long = "profile", value_name = "DISK=FILE")]
    profiles: Vec<ProfileOf>,
}

/// A profile of a disk.
#[derive(Clone)]
struct ProfileOf {
    disk: String,
    file: PathBuf,
}

impl FromStr for ProfileOf {
    type Err = String;
    fn from_str(text: &str) -> Result<ProfileOf, String> {
        let (disk, file) = text.split_once('=').ok_or("a profile is DISK=FILE, as in sda=sda.profile.toml")?;
        Ok(ProfileOf { disk: disk.into(), file: file.into() })
    }
}

impl Host {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Some(HostCommand::Status(c)) => c.run(),
            Some(HostCommand::Check(c)) => c.run(),
            Some(HostCommand::Top(c)) => c.run(),
            None => self.run.run(),
        }
    }
}

impl RunArgs {
    fn run(self) -> Result<()> {
        let access = match (&self.group, self.everyone) {
            (Some(group), _) => Access::Group(group_id(group)?),
            (None, true) => Access::All,
            (None, false) => Access::Owner,
        };
        let costs = self.profiles.iter().map(|p| {
            let disk = disk::named(&p.disk).ok_or_else(|| StartError::no_disk(&p.disk))?;
            Ok((disk.name, costs_of(&p.file)?))
        });
        let wanted = Wanted { disks: self.disks, costs: costs.collect::<Result<BTreeMap<_, _>>>()? };
        let mut agent = Agent::start(wanted)?;
        let (states, notice) = agent.shared()?;
        let handout = Handout::listen(&self.socket, access, states, notice)?;
        let disks: Vec<&str> = agent.watched().map(|w| w.disk().name.as_str()).collect();
        println!("plimsoll host watches {}; readers: {}", disks.join(", "), self.socket.display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (mut end, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            let mut tick = tokio::time::interval(TICK);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            loop {
                tokio::select! {
                    _ = tick.tick() => agent.tick().into_iter().for_each(say),
                    _ = end.recv() => return anyhow::Ok(()),
                    _ = interrupt.recv() => return Ok(()),
                }
            }
        })?;
        drop(handout);
        Ok(())
    }
}

fn say(change: Change) {
    match change {
        Change::Came(disk) => println!("{disk}: watched from now on"),
        Change::Went(disk) => println!("{disk}: gone, watched no more"),
        Change::NoRoom(disk) => eprintln!(
            "plimsoll: {disk}: can't be watched: more disks than the agent has room for, which is 64 at least; name those that matter by --disk"
        ),
        Change::Uncounted(disk) => eprintln!(
            "plimsoll: {disk}: the kernel doesn't count its requests, so errors of the agent's count stay; write 1 to /sys/block/{}/queue/iostats",
            disk.replace('/', "!")
        ),
        Change::Counted(disk) => println!("{disk}: the kernel counts its requests again"),
    }
}

/// A group's number.
fn group_id(group: &str) -> Result<u32> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let file = std::fs::read_to_string("/etc/group").context("/etc/group")?;
    let mut ids = file.lines().filter_map(|l| {
        let mut fields = l.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    });
    ids.next().ok_or_else(|| {
        anyhow!("no group {group} in /etc/group; `groupadd --system {group}` makes one, or say its number")
    })
}

/// Takes costs from a measured profile.
fn costs_of(file: &Path) -> Result<Costs> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
    let profile = Profile::parse(&name, &text)?;
    let ns = |us: f64| (us * 1000.0).round() as u32;
    if let Some(flash) = &profile.flash {
        let write = flash.program_us.iter().sum::<f64>() / flash.program_us.len().max(1) as f64;
        return Ok(Costs {
            alone_ns: ns(flash.read_us),
            read_ns: ns(flash.channel_us),
            write_ns: ns(write / 8.0),
            queued_read_ns: ns(flash.channel_us),
            ..Costs::default()
        });
    }
    let Some(disk) = &profile.disk else { bail!("{name}: has no costs of a disk or of flash") };
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let seek = |op: &plimsoll_sched::profile::OpProfile| ns((mean(&op.onwards_us) + mean(&op.backwards_us)) / 2.0);
    let per_kib = |of: &[u32]| of.iter().sum::<u32>() / of.len().max(1) as u32;
    let (read, write) = (seek(&disk.read), seek(&disk.write));
    Ok(Costs {
        alone_ns: read,
        alone_ns_per_kib: per_kib(&disk.read.transfer_ns_per_kib),
        read_ns: read,
        read_ns_per_kib: per_kib(&disk.read.transfer_ns_per_kib),
        write_ns: write,
        write_ns_per_kib: per_kib(&disk.write.transfer_ns_per_kib),
        queued_read_ns: read,
        queued_write_ns: write / 4,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_names_or_numbers() {
        assert_eq!(group_id("4242").unwrap(), 4242);
        assert_eq!(group_id("root").unwrap(), 0);
        assert!(group_id("nosuchgroup").unwrap_err().to_string().contains("groupadd"));
        assert!("sda".parse::<ProfileOf>().is_err());
    }
}
