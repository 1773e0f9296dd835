//! `plimsoll shape proxy`

use super::tuning::{Tuning, tender};
use super::{Which, group_by, lock, read_rules, segment, tid};
use anyhow::{Context, Result};
use clap::Args;
use plimsoll_shape::profile::Profile;
use plimsoll_shape::proxy::{ProxyConfig, serve};
use plimsoll_shape::users::GroupBy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Shape as a TCP proxy.
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll shape proxy --profile postgres --listen 127.0.0.1:6432 --server 127.0.0.1:5432 --p 16"
)]
pub struct Proxy {
    /// Protocol: mysql-thread, postgres, mongo, redis, generic.
    #[arg(long)]
    profile: Profile,
    /// Address to listen on.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Address of the server.
    #[arg(long, value_name = "ADDR:PORT")]
    server: SocketAddr,
    #[command(flatten)]
    tuning: Tuning,
    /// User of a connection that no rule matches: account, database, peer, connection.
    #[arg(long, default_value = "account", value_parser = group_by)]
    group_by: GroupBy,
    /// Rules: users, their weights and objectives.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    storage: super::storage::Storage,
    #[command(flatten)]
    which: Which,
}

impl Proxy {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let rules = read_rules(self.rules.as_deref())?;
        let segment = segment(&self.which.control, self.tuning.knobs(), None)?;
        self.tuning.store_all(&segment)?;
        lock(&segment)?.set_rules(&rules);
        segment.control().group_by.store(self.group_by.code(), Ordering::Relaxed);
        self.storage.watch(&self.which.control, self.tuning.p())?;
        let tender = tender(&segment)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listen = self.listen;
        let config = ProxyConfig { listen, server: self.server, protocol: self.profile.protocol() };
        runtime.block_on(serve(config, segment, tid(), tender)).with_context(|| format!("cannot listen on {listen}"))
    }
}
