//! The layers over a pool's devices.

use crate::config::{BadConfig, PoolConfig};
use crate::engine::Device;
use crate::parts::settings;
use crate::plan::Facts;
use crate::planted::{self, Mistake};
use plimsoll_bands::Planted;
use plimsoll_base::Time;
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, ModelLayer};
use plimsoll_pool::PoolPlan;
use plimsoll_stack::{Front, Offer, Stack};

/// A pool's plan and stack with the first of two configurations, in which are settings that were changed live; or with the second, and why it
/// isn't the first.
pub(super) type Built = (PoolPlan, Stack, Result<(), BadConfig>);

pub(super) fn build_live(
    [live, configured]: [&PoolConfig; 2],
    facts: &Facts,
    devices: &[Device],
) -> Result<Built, BadConfig> {
    let offers = || devices.iter().map(Device::offer).collect();
    match build_stack(live, facts, offers()) {
        Err(unfit) if settings::values(live) != settings::values(configured) => {
            let (plan, stack) = build_stack(configured, facts, offers())?;
            Ok((plan, stack, Err(unfit)))
        }
        built => built.map(|(plan, stack)| (plan, stack, Ok(()))),
    }
}

/// A pool's plan and stack, as configured, over devices that offer `offers`.
///
/// # Errors
/// If the configuration is wrong; the error names the mistake.
pub fn build_stack(config: &PoolConfig, facts: &Facts, offers: Vec<Offer>) -> Result<(PoolPlan, Stack), BadConfig> {
    let mut plan = crate::plan::plan(config, facts, offers[plimsoll_pool::SLOW])?;
    if let Some(bands) = plan.bands.as_mut().filter(|_| planted::is(Mistake::ZonesUnreset)) {
        bands.config.planted = Some(Planted::ResetForgotten);
    }
    let mut stack = plimsoll_pool::build(&plan, offers).map_err(BadConfig::found)?;
    if planted::is(Mistake::RangesWhole) {
        stack.with_layer(Time::ZERO, |f: &mut Front, _| f.set_parts(1 << 62));
    }
    Ok((plan, stack))
}

/// The modelled device over a file of `file_bytes`, if it is to be one.
pub(super) fn model_of(config: &PoolConfig, file_bytes: u64) -> Result<Option<ModelLayer<AnyModel>>, BadConfig> {
    model_named(config.device.model.as_deref(), file_bytes)
}

/// The device modelled by this profile, if one is named.
pub(super) fn model_named(name: Option<&str>, file_bytes: u64) -> Result<Option<ModelLayer<AnyModel>>, BadConfig> {
    let Some(name) = name else { return Ok(None) };
    // A flash drive's maps take memory by capacity: no more of it than the file behind it.
    let spec = DeviceSpec::named(name).map_err(BadConfig::found)?.at_most(file_bytes);
    let model = spec.build(DeviceOptions::default()).map_err(BadConfig::found)?;
    Ok(Some(ModelLayer::new(model)))
}
