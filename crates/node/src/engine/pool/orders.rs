//! Orders of the node to a pool, and what goes with its volumes, tenants and slow clients.

use super::Pool;
use crate::engine::command::{ClientFilter, Command, Recovered};
use crate::engine::deletions::Step;
use crate::engine::exports::account_of;
use crate::replica::Claim;
use plimsoll_base::{TenantId, VolumeKey};
use plimsoll_stack::Front;
use std::io;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

impl Pool {
    pub(super) fn drain_commands(&mut self) -> io::Result<()> {
        loop {
            match self.receiver.commands.try_recv() {
                Ok(command) => self.handle_command(command)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    self.stop();
                    return Ok(());
                }
            }
        }
    }

    pub(super) fn handle_command(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Attach { fd, params, early, seat } => {
                if self.stack.layer::<Front>().is_some_and(|f| !f.knows(params.volume)) {
                    // It was deleted between the look-up and now. Its socket closes.
                    tracing::debug!("a client of a volume that was just deleted is disconnected");
                    return Ok(());
                }
                let claim = match Claim::of(&params.replica, params.used_as, params.wire.is_read_only()) {
                    Ok(claim) => claim,
                    Err(why) => {
                        // It, or what excludes it, came between the look-up and now. Its socket closes.
                        let volume = params.volume.id;
                        tracing::warn!(volume, peer = %params.peer, "a client is disconnected: its volume {why}");
                        return Ok(());
                    }
                };
                let conn = self.clients.attach(self.now, fd, params, &early, (seat, claim));
                if self.stopping {
                    self.clients[conn].close(false);
                }
                self.parse(conn)?;
            }
            Command::SetVolume { key, front, extents, terms, reply } => {
                self.stack.set_volume(self.now, key, front, &extents);
                self.stack.set_terms(self.now, key, &terms);
                self.pump()?;
                let _ = reply.send(()); // whoever asked may have gone
            }
            Command::DeleteVolume { key, extents, reply } => {
                self.injections.end(key);
                self.end_injected();
                self.stack.close_volume(self.now, key);
                self.clients.close(&ClientFilter::of_volume(key), true, &mut self.buffers);
                self.deletions.begin(key, extents, reply);
            }
            Command::SetTenant { tenant, limits, terms } => {
                self.clients.set_limits(tenant, limits);
                self.exports.set_class(tenant, Some(&terms.class));
                self.stack.set_tenant(self.now, tenant, Some(&terms));
                self.pump()?;
            }
            Command::ForgetTenant { tenant } => {
                self.forgetting.push(tenant);
                self.forget_tenants();
                self.pump()?;
            }
            Command::Look(look) => look(&self.stack, self.now),
            Command::Snapshot { reply } => {
                let _ = reply.send(Box::new(self.snapshot()));
            }
            Command::SnapshotExport { at, reply } => {
                let _ = reply.send(self.snapshot_export(at));
            }
            Command::History { volume, tenant, reply } => {
                let _ = reply.send(self.exports.history(self.now, volume, tenant));
            }
            Command::Connections { of, reply } => {
                let _ = reply.send(self.connections(&of));
            }
            Command::Disconnect { of, reply } => {
                let _ = reply.send(self.clients.close(&of, false, &mut self.buffers));
            }
            Command::Traces { reply } => {
                let _ = reply.send(self.traces.newest_first());
            }
            Command::Recovered { reply } => {
                let has_failed = self.stack.layer::<Front>().is_some_and(Front::flush_failed);
                let recovered = match has_failed {
                    false => Recovered::NothingFailed,
                    true if self.stack.recovered(self.now) => Recovered::Done,
                    true => Recovered::NeedsRestart,
                };
                self.tell_health();
                let _ = reply.send(recovered);
            }
            Command::Inject { key, terms, reply } => {
                let known = self.stack.layer::<Front>().is_some_and(|f| f.knows(key));
                let had = match terms.filter(|_| known && !self.stopping) {
                    Some(terms) => {
                        self.injections.begin(self.now, key, terms);
                        true
                    }
                    None => self.injections.end(key),
                };
                self.end_injected();
                let _ = reply.send(had);
            }
            Command::Tell { to, reply } => {
                let known = self.stack.tell(self.now, to);
                self.pump()?;
                let _ = reply.send(known);
            }
            Command::PutDevice { number, device } => {
                if self.devices.put(number, device) {
                    self.devices.listen_to(number, &mut self.ring)?;
                }
            }
            Command::Shutdown => {
                self.stop();
            }
        }
        Ok(())
    }

    /// Takes the next steps of deletions, and answers for those that are done.
    pub(super) fn go_on_deleting(&mut self) -> io::Result<()> {
        loop {
            let has_requests = |key| self.stack.layer::<Front>().is_some_and(|f| f.inflight_of(key) > 0);
            match self.deletions.next(has_requests, |key| self.stack.is_using(key)) {
                None => break,
                Some(Step::Forget(key)) => self.stack.forget_volume(self.now, key),
                Some(Step::Zero { key, job, extents }) => {
                    self.forget_exports(|k, _| k == key);
                    self.stack.zero_volume(self.now, key, job, &extents);
                }
            }
            self.pump()?;
        }
        while self.deletions.is_zeroing()
            && let Some((job, result)) = self.stack.next_zeroed(self.now)
        {
            self.deletions.zeroed(job, result);
        }
        Ok(())
    }

    /// Tenants that were removed are forgotten when their last connection has gone.
    pub(super) fn forget_tenants(&mut self) {
        for at in (0..self.forgetting.len()).rev() {
            let tenant = self.forgetting[at];
            if self.clients.forget_tenant(tenant) {
                self.forgetting.swap_remove(at);
                self.forget_exports(|_, t| t == tenant);
                self.exports.set_class(tenant, None);
                self.stack.set_tenant(self.now, tenant, None);
            }
        }
    }

    /// Looks for slow clients, after what they did until now has been taken in.
    pub(super) fn look_around(&mut self) -> io::Result<()> {
        self.ring.wait(Some(Duration::ZERO))?;
        self.reap()?;
        self.pump()?;
        self.serve_connections()?;
        self.clients.end_slow(self.now);
        if !self.injections.is_empty() {
            // Whose client sends nothing more needn't wait for its answers to go.
            let (clients, inside) = (&self.clients, &self.inside);
            self.injections.let_go(|c| clients[inside[c.io.tag as usize].conn].is_ending());
        }
        Ok(())
    }

    /// Counters go with their volume or tenant.
    ///
    /// # Panics
    /// If a request in flight needs them.
    pub(super) fn forget_exports(&mut self, gone: impl Fn(VolumeKey, TenantId) -> bool) {
        for place in self.exports.forget(gone) {
            assert!(self.inside.iter().all(|i| i.export != place), "counters are forgotten while a request needs them");
            self.stack.forget_account(account_of(place));
        }
    }
}
