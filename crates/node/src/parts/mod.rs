//! One part a layer: all that the node knows of a layer outside its crate.
//!
//! A part checks the layer's configuration. It reads the layer's state on the pool's thread, and shows that state as JSON, as
//! metrics and as text for people. It has the layer's live settings and its actions. HTTP, metrics, `plimsoll top`, the dashboard
//! and the command line loop over [`PARTS`] and name no layer. The order of layers is not here: `plimsoll_pool::build` alone knows
//! it.

pub mod admission;
pub mod bands;
pub mod cache;
pub mod cores;
pub mod fence;
pub mod logs;
pub mod memory;
pub mod model;
pub mod osds;
pub mod page;
pub mod scheduler;
pub mod settings;
pub mod throttle;

use crate::config::{BadConfig, Config, PoolConfig};
use crate::directory::Directory;
use crate::engine::PoolSnapshot;
use crate::node::{Node, NodeError};
use crate::view::ExportView;
use page::Page;
use plimsoll_base::{TenantId, Time, VolumeKey};
use plimsoll_stack::{OwnTerms, Stack};
use plimsoll_store::VolumeRecord;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use settings::{Live, Setting, VolumePart};
use std::any::Any;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

/// Every part, in the order of the layers from the top down.
pub static PARTS: &[&dyn AnyPart] = &[
    &admission::Admission,
    &throttle::Throttle,
    &cores::Cores,
    &cache::Cache,
    &memory::Memory,
    &logs::Logs,
    &bands::Bands,
    &fence::Fence,
    &scheduler::Scheduler,
    &osds::Osds,
    &model::Model,
];

/// One layer outside its crate. Only the first five items are needed; a layer without settings or actions has none.
pub trait Part: Sync + 'static {
    /// The layer's state as it is copied on the pool's thread.
    type Seen: Clone + Send + Sync + 'static;
    /// The same for `GET /v1/pools/{name}/{part}`.
    type View: Serialize + DeserializeOwned + JsonSchema;

    /// The name in URLs and on the screen.
    const NAME: &'static str;
    /// A line for the API's description.
    const SUMMARY: &'static str;
    /// The way to give a pool such a layer.
    const HOW: &'static str;

    /// Looks at the layer; `None` if the pool has none.
    fn look(stack: &Stack, now: Time) -> Option<Self::Seen>;

    /// The layer's state in the API's terms.
    fn view(seen: &Self::Seen, about: &About) -> Self::View;

    /// The layer's state for people.
    fn shown(view: &Self::View) -> Shown;

    /// The layer's metrics, of all pools that have it; without one, the families alone.
    fn metrics(page: &mut Page, pools: &[(&str, Self::View)]);

    /// Checks the layer's configuration, without devices.
    ///
    /// # Errors
    /// The fault, with the place in the file if it is another than the pool's.
    fn check(_config: &PoolConfig) -> Result<(), BadConfig> {
        Ok(())
    }

    /// Checks the configuration of the pool's volumes, without devices.
    ///
    /// # Errors
    /// The fault, and the remedy.
    fn check_config(_config: &Config, _pool: &PoolConfig) -> Result<(), BadConfig> {
        Ok(())
    }

    /// Adds the layer's part of a volume's terms.
    fn add_terms(_live: &Live, _record: &VolumeRecord, _part: &VolumePart, own: OwnTerms) -> OwnTerms {
        own
    }

    /// Checks the layer's configuration together with the pool's devices and volumes.
    ///
    /// # Errors
    /// The fault, and the remedy.
    fn check_volumes(_live: &Live, _volumes: &[VolumePart]) -> Result<(), BadConfig> {
        Ok(())
    }

    /// The layer's settings that can be changed while the pool serves.
    const SETTINGS: &'static [Setting] = &[];

    /// Orders that an operator can give to the layer.
    const ACTIONS: &'static [Action] = &[];
}

/// The context of a part's view.
pub struct About<'a> {
    /// The node, for questions that don't need its directory: a guard of that is held.
    pub node: &'a Node,
    /// Its directory.
    pub directory: &'a Directory,
    /// The pool's number.
    pub pool: usize,
    /// The pool's counters.
    pub pool_view: &'a PoolView,
    /// Names of its volumes, once one is asked for. A view has a row a volume, and must not look through all of them for each.
    names: OnceCell<BTreeMap<VolumeKey, &'a str>>,
}

impl<'a> About<'a> {
    /// The context of one pool's parts.
    pub fn new(node: &'a Node, directory: &'a Directory, pool: usize, pool_view: &'a PoolView) -> About<'a> {
        About { node, directory, pool, pool_view, names: OnceCell::new() }
    }

    /// Returns the name of one of the pool's volumes; its number if it is deleted.
    pub fn volume_name(&self, key: VolumeKey) -> String {
        let of_pool = || self.directory.volumes.values().filter(|v| v.pool == self.pool);
        let names = self.names.get_or_init(|| of_pool().map(|v| (v.key, v.name.as_str())).collect());
        names.get(&key).map_or_else(|| Directory::unnamed(key), |name| (*name).to_owned())
    }
}

/// All that a pool counts.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// The pool's own.
    pub pool: PoolSnapshot,
    /// Its layers'.
    pub layers: Layers,
    /// Per volume and tenant, by volume.
    pub exports: Vec<ExportView>,
}

impl PoolView {
    /// Those of one volume. A scrape asks for each volume: looking through all of them each time would take the control thread for minutes.
    pub fn exports_of(&self, key: VolumeKey) -> &[ExportView] {
        let first = self.exports.partition_point(|e| e.key < key);
        let count = self.exports[first..].partition_point(|e| e.key == key);
        &self.exports[first..first + count]
    }

    /// Tenants that are connected to a volume, and their connections.
    pub fn connections_of(&self, key: VolumeKey) -> impl Iterator<Item = (TenantId, u32)> + '_ {
        let of_volume = (key, TenantId(0))..=(key, TenantId(u16::MAX));
        self.pool.connections.range(of_volume).map(|((_, tenant), n)| (*tenant, *n))
    }
}

/// A layer's state for people.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    /// The most important in a few words.
    pub headline: String,
    /// The fault and its consequences, if there is one.
    pub problem: Option<String>,
    /// Further lines: a label, and a text. A line without label is a picture's.
    pub lines: Vec<(String, String)>,
    /// Tables.
    pub tables: Vec<ShownTable>,
}

/// A table of a [`Shown`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ShownTable {
    /// Its columns.
    pub head: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

impl Shown {
    /// With only a headline.
    pub fn new(headline: impl Into<String>) -> Shown {
        Shown { headline: headline.into(), ..Shown::default() }
    }

    /// With one more line.
    pub fn line(&mut self, label: &str, text: impl Into<String>) {
        self.lines.push((label.to_string(), text.into()));
    }

    /// With one more table.
    pub fn table(&mut self, head: &[&str], rows: Vec<Vec<String>>) {
        self.tables.push(ShownTable { head: head.iter().map(|h| h.to_string()).collect(), rows });
    }
}

/// Future of an action.
pub type Acting = Pin<Box<dyn Future<Output = Result<(), NodeError>> + Send>>;

/// An order that an operator can give to a layer: `POST /v1/pools/{name}/{part}/{action}`.
pub struct Action {
    /// Its name in the URL.
    pub name: &'static str,
    /// A line for the API's description.
    pub summary: &'static str,
    /// The body that it needs; `None`: none.
    pub body: Option<fn(&mut SchemaGenerator) -> Value>,
    /// Carries it out on a pool of that name.
    pub act: fn(Arc<Node>, String, Value) -> Acting,
}

/// A copied state of a layer.
type Seen = Arc<dyn Any + Send + Sync>;

/// The states of a pool's layers, as copied on its thread.
#[derive(Clone)]
pub struct Layers(Vec<Option<Seen>>);

impl std::fmt::Debug for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(PARTS.iter().zip(&self.0).filter(|(_, seen)| seen.is_some()).map(|(p, _)| p.name()))
            .finish()
    }
}

impl Layers {
    /// Looks at every layer of `stack`.
    pub fn look(stack: &Stack, now: Time) -> Layers {
        Layers(PARTS.iter().map(|p| p.look(stack, now)).collect())
    }

    /// The state of `P`'s layer; `None` if the pool has no such layer.
    pub fn of<P: Part>(&self) -> Option<&P::Seen> {
        let at = PARTS.iter().position(|p| p.name() == P::NAME)?;
        self.0.get(at)?.as_ref()?.downcast_ref()
    }

    fn get(&self, name: &str) -> Option<&Seen> {
        let at = PARTS.iter().position(|p| p.name() == name)?;
        self.0.get(at)?.as_ref()
    }
}

/// A [`Part`] whose types are forgotten, to be looped over.
pub trait AnyPart: Sync {
    /// [`Part::NAME`].
    fn name(&self) -> &'static str;
    /// [`Part::SUMMARY`].
    fn summary(&self) -> &'static str;
    /// [`Part::HOW`].
    fn how(&self) -> &'static str;
    /// [`Part::SETTINGS`].
    fn settings(&self) -> &'static [Setting];
    /// [`Part::ACTIONS`].
    fn actions(&self) -> &'static [Action];
    /// [`Part::check`].
    #[allow(clippy::missing_errors_doc, reason = "those of the part")]
    fn check(&self, config: &PoolConfig) -> Result<(), BadConfig>;
    /// [`Part::check_config`].
    #[allow(clippy::missing_errors_doc, reason = "those of the part")]
    fn check_config(&self, config: &Config, pool: &PoolConfig) -> Result<(), BadConfig>;
    /// [`Part::add_terms`].
    fn add_terms(&self, live: &Live, record: &VolumeRecord, part: &VolumePart, own: OwnTerms) -> OwnTerms;
    /// [`Part::check_volumes`].
    #[allow(clippy::missing_errors_doc, reason = "those of the part")]
    fn check_volumes(&self, live: &Live, volumes: &[VolumePart]) -> Result<(), BadConfig>;
    /// [`Part::look`].
    fn look(&self, stack: &Stack, now: Time) -> Option<Seen>;
    /// The layer's view as JSON; `None` if the pool has no such layer.
    fn json(&self, about: &About) -> Option<Value>;
    /// The layer's state for people; `None` if the pool has no such layer.
    fn shown(&self, about: &About) -> Option<Shown>;
    /// The same from a view's JSON.
    ///
    /// # Errors
    /// If it is no view of this part.
    fn shown_of(&self, json: Value) -> Result<Shown, serde_json::Error>;
    /// [`Part::metrics`].
    fn metrics(&self, page: &mut Page, pools: &[(&str, About)]);
    /// The schema of the view.
    fn schema(&self, generator: &mut SchemaGenerator) -> Value;
}

impl<P: Part> AnyPart for P {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn summary(&self) -> &'static str {
        P::SUMMARY
    }

    fn how(&self) -> &'static str {
        P::HOW
    }

    fn settings(&self) -> &'static [Setting] {
        P::SETTINGS
    }

    fn actions(&self) -> &'static [Action] {
        P::ACTIONS
    }

    fn check(&self, config: &PoolConfig) -> Result<(), BadConfig> {
        P::check(config)
    }

    fn check_config(&self, config: &Config, pool: &PoolConfig) -> Result<(), BadConfig> {
        P::check_config(config, pool)
    }

    fn add_terms(&self, live: &Live, record: &VolumeRecord, part: &VolumePart, own: OwnTerms) -> OwnTerms {
        P::add_terms(live, record, part, own)
    }

    fn check_volumes(&self, live: &Live, volumes: &[VolumePart]) -> Result<(), BadConfig> {
        P::check_volumes(live, volumes)
    }

    fn look(&self, stack: &Stack, now: Time) -> Option<Seen> {
        P::look(stack, now).map(|seen| Arc::new(seen) as Seen)
    }

    fn json(&self, about: &About) -> Option<Value> {
        view::<P>(about).map(|v| serde_json::to_value(v).expect("views are plain values"))
    }

    fn shown(&self, about: &About) -> Option<Shown> {
        view::<P>(about).map(|v| P::shown(&v))
    }

    fn shown_of(&self, json: Value) -> Result<Shown, serde_json::Error> {
        serde_json::from_value(json).map(|v| P::shown(&v))
    }

    fn metrics(&self, page: &mut Page, pools: &[(&str, About)]) {
        let all: Vec<_> = pools.iter().filter_map(|(name, about)| Some((*name, view::<P>(about)?))).collect();
        P::metrics(page, &all);
    }

    fn schema(&self, generator: &mut SchemaGenerator) -> Value {
        generator.subschema_for::<P::View>().to_value()
    }
}

fn view<P: Part>(about: &About) -> Option<P::View> {
    let seen = about.pool_view.layers.get(P::NAME)?.downcast_ref::<P::Seen>()?;
    Some(P::view(seen, about))
}

/// The part of this name.
pub fn by_name(name: &str) -> Option<&'static dyn AnyPart> {
    PARTS.iter().copied().find(|p| p.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_keys_are_unique() {
        let names: BTreeSet<_> = PARTS.iter().map(|p| p.name()).collect();
        assert_eq!(names.len(), PARTS.len());
        assert!(!names.contains("settings") && !names.contains("recover"), "those are other routes of a pool");
        let keys: Vec<_> = PARTS.iter().flat_map(|p| p.settings()).map(|s| s.key).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    }
}
