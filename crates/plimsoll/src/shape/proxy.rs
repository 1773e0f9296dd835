//! `plimsoll shape proxy`

use super::{group_by, p_mode, read_rules};
use anyhow::{Context, Result};
use clap::Args;
use plimsoll_shape::control::{ControlConfig, Controller, PMode};
use plimsoll_shape::gate::{Knobs, OwnGate};
use plimsoll_shape::profile::Profile;
use plimsoll_shape::proxy::{ProxyConfig, Shared, serve};
use plimsoll_shape::segment::monotonic;
use plimsoll_shape::users::GroupBy;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

/// Shape as a TCP proxy.
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll shape proxy --profile postgres --listen 127.0.0.1:6432 --server 127.0.0.1:5432 --p 16"
)]
pub struct Proxy {
    /// What is spoken: mysql-thread, postgres, mongo, redis, generic.
    #[arg(long)]
    profile: Profile,
    /// Where clients come.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Where the server is.
    #[arg(long, value_name = "ADDR:PORT")]
    server: SocketAddr,
    /// Transactions inside at a time: a number, `auto`, or `unlimited`.
    #[arg(long, default_value = "auto", value_parser = p_mode)]
    p: PMode,
    /// Whose a connection is where no rule matches: account, database, peer, connection.
    #[arg(long, default_value = "account", value_parser = group_by)]
    group_by: GroupBy,
    /// Rules: users, their weights and objectives.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
}

/// Connections that are shaped; more pass.
const CONNS: usize = 16_384;
const USERS: usize = 2048;

impl Proxy {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let rules = read_rules(self.rules.as_deref())?;
        let gate = OwnGate::new(USERS, CONNS, Knobs::default(), monotonic());
        let shared = Rc::new(RefCell::new(Shared::new(gate, CONNS)));
        let control = Controller::new(ControlConfig::new(self.p), Knobs::default().zeta);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listen = self.listen;
        let config = ProxyConfig {
            listen,
            server: self.server,
            protocol: self.profile.protocol(),
            group_by: self.group_by,
            rules,
        };
        runtime.block_on(serve(config, shared, control)).with_context(|| format!("cannot listen on {listen}"))
    }
}
