//! Orders that concern the whole process: `POST /v1/reload`, `POST /v1/drain`. The code that runs the node carries them out.

use super::api::{Draining, PoolImage, PoolPath, PoolTaken, Reloaded};
use super::{ApiError, Shared};
use crate::config::Config;
use crate::node::{ImageView, NodeError, PathView, lost_here};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri};
use serde::Deserialize;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// An order, with the place for its answer.
#[derive(Debug)]
pub enum Order {
    /// Read the configuration anew.
    Reload(oneshot::Sender<Result<crate::reload::Reloaded, NodeError>>),
    /// Read the configuration anew and check it, without applying it.
    Check(oneshot::Sender<Result<Box<Config>, NodeError>>),
    /// End in order. The answer: the longest time that it takes.
    Drain(oneshot::Sender<Duration>),
}

/// The way of orders to whoever carries them out.
#[derive(Debug)]
pub struct Orders {
    to: mpsc::Sender<Order>,
    ending: AtomicBool,
}

impl Orders {
    /// A way, and its end.
    pub fn new() -> (Orders, mpsc::Receiver<Order>) {
        let (to, from) = mpsc::channel(1);
        (Orders { to, ending: AtomicBool::new(false) }, from)
    }

    /// The node is ending from now on.
    pub fn end(&self) {
        self.ending.store(true, Relaxed);
    }

    /// True if the node is ending.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, ApiError> {
        let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the node is ending");
        let (reply, answer) = oneshot::channel();
        self.to.send(make(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

pub(super) async fn reload(State(control): Shared) -> Result<Json<Reloaded>, ApiError> {
    let done = control.orders.ask(Order::Reload).await?;
    let crate::reload::Reloaded { changed, restart, still_served, failed } =
        done.map_err(|e| ApiError::new(StatusCode::CONFLICT, e.to_string()).todo("correct it; nothing was changed"))?;
    Ok(Json(Reloaded { changed, restart, still_served, failed }))
}

#[derive(Deserialize)]
struct TakeQuery {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    without_cache: bool,
}

/// Serves a pool that is configured and isn't served, by a reload. With `force` the lock of its image is taken from its owner before.
pub(super) async fn take_pool(
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<Json<PoolTaken>, ApiError> {
    let query = Query::<TakeQuery>::try_from_uri(&uri).map_err(|e| ApiError::bad(e.body_text()).at(uri.path()))?;
    let conflict = |what: String| ApiError::new(StatusCode::CONFLICT, what).at(format!("pool `{name}`"));
    let wrong = |e: NodeError| conflict(e.to_string()).todo("correct it; nothing was changed");
    let missing = || {
        ApiError::missing(format!("the configuration has no pool `{name}`"))
            .todo("add its sections; `plimsoll config export` on the other gateway prints them")
    };
    let TakeQuery { force, without_cache } = query.0;
    if without_cache && !force {
        return Err(ApiError::bad("`without_cache` is for `force`").at(uri.path()));
    }
    let mut blocked = None;
    if force {
        // Its owner is blocked for a year: a file that the reload would refuse is refused before.
        let config = control.orders.ask(Order::Check).await?.map_err(wrong)?;
        if !config.pool.iter().any(|p| *p.name.get_ref() == name) {
            return Err(missing());
        }
        let owned = name.clone();
        let broken = super::change::change(&control.node, |node| async move {
            node.break_lock(&owned, &config, without_cache).await
        });
        blocked = broken.await.map_err(|e| e.at(format!("pool `{name}`")))?;
    }
    let done = control.orders.ask(Order::Reload).await?;
    done.map_err(|e| {
        conflict(e.to_string()).todo(match &blocked {
            None => "correct it; nothing was changed".into(),
            Some(owner) => format!(
                "correct it, then take the pool without `--force`: client {owner}, which had the lock, is blocked; nothing else was changed"
            ),
        })
    })?;
    let pool = control.node.pools.named(&name).map(|(_, pool)| pool);
    match pool {
        Some(pool) if pool.has_lost_lock() => Err(conflict(lost_here(&name))),
        Some(pool) if pool.failed.is_none() => Ok(Json(PoolTaken {
            taken: name,
            device: pool.device.clone(),
            volumes: control.node.volumes_of(&pool.name),
        })),
        Some(pool) => Err(conflict(pool.failed.clone().unwrap_or_default()).todo(match (blocked, force) {
            (Some(owner), _) => {
                format!(
                    "correct it, then take the pool without `--force`: client {owner}, which had the lock, is blocked"
                )
            }
            (None, true) => "nobody had the lock when it was to be taken: correct it, then take the pool again".into(),
            (None, false) => {
                "if its owner hangs or can't be reached: `--force` takes the lock away, and blocks it".into()
            }
        })),
        None => Err(missing()),
    }
}

/// A pool's image as this node sees it: as it is served, or as the configuration file declares it now.
pub(super) async fn pool_image(State(control): Shared, Path(name): Path<String>) -> Result<Json<PoolImage>, ApiError> {
    let place = format!("pool `{name}`");
    let served = control.node.served_image(&name).await.map_err(|e| ApiError::from(e).at(place.clone()))?;
    let view = match served {
        Some(view) => view,
        None => {
            let checked = control.orders.ask(Order::Check).await?;
            let config = checked.map_err(|e| ApiError::new(StatusCode::CONFLICT, e.to_string()).at(place.clone()))?;
            let looked = control.node.declared_image(&name, &config).await;
            looked.map_err(|e| ApiError::from(e).at(place))?
        }
    };
    let ImageView { device, is_served, why_not, device_uuid, owner, needs_cache, connections, faults, paths } = view;
    let path = |p: PathView| PoolPath {
        nqn: p.nqn,
        path: p.path,
        volume: p.image.volume,
        size_bytes: p.image.size_bytes,
        read_only: p.image.read_only,
    };
    let paths = paths.into_iter().map(path).collect();
    let connections = connections as u64;
    let (pool, served) = (name, is_served);
    Ok(Json(PoolImage { pool, device, served, why_not, device_uuid, owner, needs_cache, connections, faults, paths }))
}

pub(super) async fn drain(State(control): Shared) -> Result<(StatusCode, Json<Draining>), ApiError> {
    let at_most = control.orders.ask(Order::Drain).await?;
    Ok((StatusCode::ACCEPTED, Json(Draining { at_most_us: at_most.as_micros() as u64 })))
}
