//! A pool's settings and a volume's deadline, changed while they're in use.

use super::{Command, Node, NodeError, Result};
use crate::config::check_deadline;
use crate::knobs::{Knobs, Wanted};
use plimsoll_base::Span;
use plimsoll_stack::Order;

impl Node {
    /// A pool's settings as they are now.
    pub fn knobs(&self, name: &str) -> Result<Knobs> {
        let pool = self.pool_named(name)?;
        Ok(*self.pools[pool].knobs.lock().expect("no panic while held"))
    }

    /// Changes a pool's settings, until the node is started anew.
    pub async fn change_knobs(&self, name: &str, wanted: Wanted) -> Result<()> {
        let _one = self.changing.lock().await;
        let p = &self.pools[self.pool_named(name)?];
        let now = *p.knobs.lock().expect("no panic while held");
        let (new, orders) = now.changed(&wanted).map_err(NodeError::Refused)?;
        for knob in orders {
            let order = Order::Set(knob);
            p.handle.ask(|reply| Command::Order { order, reply }).await.map_err(|_| p.gone())?;
        }
        *p.knobs.lock().expect("no panic while held") = new;
        Ok(())
    }

    /// Connections that ask for a volume from now on have this deadline unless they say their own; `None`: their tenant's. Until
    /// the node is started anew.
    pub async fn set_volume_deadline(&self, name: &str, deadline: Option<Span>) -> Result<()> {
        let _one = self.changing.lock().await;
        self.volume_named(name)?;
        deadline.map_or(Ok(()), check_deadline).map_err(NodeError::Refused)?;
        self.directory_mut(|d| match deadline {
            Some(deadline) => drop(d.promises.volumes.insert(name.to_string(), deadline)),
            None => drop(d.promises.volumes.remove(name)),
        });
        Ok(())
    }
}
