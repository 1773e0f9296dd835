//! Plans become stacks in one order, whatever is left out, and a plan that is written and read again is the same plan.

use plimsoll_base::Span;
use plimsoll_cache::{CacheConfig, Shape as CacheShape};
use plimsoll_cores::CoresConfig;
use plimsoll_device::{DeviceOptions, DeviceSpec};
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, FenceConfig, FlashPredictor};
use plimsoll_logs::{LogsConfig, Shape as LogsShape};
use plimsoll_pool::{
    CachePlan, Costs, GivenUp, KnownVolume, LogsPlan, MemoryPlan, ModelPlan, NvramPlan, PoolPlan, SLOW, SchedulerPlan,
    build, compose,
};
use plimsoll_sched::admission::AdmissionConfig;
use plimsoll_sched::room::RoomConfig;
use plimsoll_sched::{SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Front, Map, Offer, Stack};

const GIB: u64 = 1 << 30;

fn offer(size_bytes: u64) -> Offer {
    Offer { size_bytes, block_bytes: 512, io_bytes_max: 32 << 20, atomic_bytes: 512, queue_max: 64 }
}

fn model(name: &str) -> ModelPlan {
    ModelPlan { spec: DeviceSpec::named(name).expect(name), options: DeviceOptions { seed: 3, mismatch: 0.1 } }
}

/// A pool with every layer.
fn whole() -> PoolPlan {
    let fast = DeviceKind::flash(FlashPredictor::TYPICAL);
    PoolPlan {
        admission: Some(AdmissionConfig { room: Some(RoomConfig::DEFAULT) }),
        throttle: true,
        cores: Some(CoresConfig::new(4)),
        cache: Some(CachePlan {
            shape: CacheShape::default(),
            config: CacheConfig::default(),
            size_bytes: Some(256 << 20),
            known: Some(vec![KnownVolume { id: 1, generation: 2, behind: true }]),
            given_up: vec![GivenUp { id: 3, generation: 1, since: 7 }],
            absent: None,
            nvram: Some(NvramPlan { salt: 11 }),
            model: Some(model("sized:512M:vf-sata-60g")),
        }),
        memory: Some(MemoryPlan { pages: 1024, hit: Span::ZERO }),
        logs: Some(LogsPlan { shape: LogsShape::default(), config: LogsConfig::default() }),
        fence: Some(FenceConfig::new(4, vec![DeviceKind::disk(DiskPredictor::typical(160 * GIB)), fast])),
        scheduler: SchedulerPlan {
            kind: SchedulerKind::Cfq,
            options: SchedulerOptions::default(),
            costs: Costs::Unknown,
        },
        model: Some(model("hdd-160g-7200")),
        ..PoolPlan::new()
    }
}

fn offers() -> Vec<Offer> {
    vec![offer(160 * GIB), offer(GIB), offer(64 << 20)]
}

fn names(stack: &Stack) -> Vec<&'static str> {
    (0..stack.len()).map(|n| stack.node_stats(n).0).collect()
}

#[test]
fn layers_are_in_their_order_whatever_is_left_out() {
    let all = ["admission", "throttle", "front", "cores", "cache", "map", "pagecache", "logs", "fence", "cfq", "disk"];
    let found = names(&build(&whole(), offers()).unwrap());
    assert_eq!(found[..10], all[..10], "{found:?}");
    let fast = &found[11..];
    assert_eq!(fast.len(), 3, "NVRAM, a queue and the modelled drive: {fast:?}");
    for leave_out in 0..1u32 << 7 {
        let has = |bit: u32| leave_out & (1 << bit) == 0;
        let mut plan = whole();
        plan.admission = plan.admission.filter(|_| has(0));
        plan.throttle = has(6);
        plan.cores = plan.cores.filter(|_| has(1));
        plan.cache = plan.cache.filter(|_| has(2));
        plan.memory = plan.memory.filter(|_| has(3));
        plan.logs = plan.logs.filter(|_| has(4));
        plan.fence = plan.fence.filter(|_| has(5));
        if let (None, Some(fence)) = (&plan.cache, &mut plan.fence) {
            fence.devices.truncate(1);
        }
        let found = names(&build(&plan, offers()).unwrap());
        let chain: Vec<&str> = all.iter().take(10).copied().filter(|name| found.contains(name)).collect();
        assert_eq!(found[..chain.len()], chain, "left out {leave_out:07b}");
    }
}

/// Layers that look at each extent or page of a range get shorter parts.
#[test]
fn the_parts_of_ranges_suit_the_layers() {
    let parts = |plan: &PoolPlan| build(plan, offers()).unwrap().layer::<Front>().expect("a front").parts();
    assert_eq!(parts(&PoolPlan::new()), 64 << 20);
    assert_eq!(parts(&PoolPlan { memory: whole().memory, ..PoolPlan::new() }), 16 << 20);
    assert_eq!(parts(&PoolPlan { model: whole().model, ..PoolPlan::new() }), 16 << 20);
    assert_eq!(parts(&PoolPlan { logs: whole().logs, ..PoolPlan::new() }), 8 << 20);
    let cached = |extent_bytes: u32| {
        let cache = whole().cache.map(|c| CachePlan { shape: CacheShape { extent_bytes, ..c.shape }, ..c });
        PoolPlan { cache, ..PoolPlan::new() }
    };
    assert_eq!([8 << 10, 32 << 10, 128 << 10].map(|bytes| parts(&cached(bytes))), [4 << 20, 16 << 20, 64 << 20]);
    assert_eq!(parts(&whole()), 4 << 20);
}

/// A change by name changes that layer and nothing else: every port leads where it led.
#[test]
fn a_composition_is_changed_by_name() {
    let composed = |plan: &PoolPlan| compose(plan, offers(), &mut ModelPlan::before).unwrap();
    let plan =
        PoolPlan { admission: None, throttle: false, cores: None, memory: None, logs: None, fence: None, ..whole() };
    let layers = ["front", "cache", "map", "cfq", "model", "nvram", "noop", "model"];
    assert_eq!(names(&composed(&plan).stack()), layers);
    assert_eq!(names(&composed(&plan).without("front").without("map").stack())[..2], ["cache", "cfq"]);
    let above = composed(&plan).above("scheduler", "another map", Box::new(Map::new())).stack();
    assert_eq!(names(&above)[..5], ["front", "cache", "map", "map", "cfq"]);
    assert_eq!(names(&composed(&plan).instead("scheduler", Box::new(Map::new())).stack())[3], "map");
    let bare = composed(&plan).bare(SLOW).stack();
    assert_eq!(names(&bare), layers, "a model alone stays");
    assert_eq!(bare.offered().size_bytes, 160_041_885_696, "of the whole model");
    let ended = composed(&plan).ending(SLOW, "end", Box::new(Map::new()));
    assert_eq!(names(&ended.stack()).last(), Some(&"map"));
    // A fence's second face is not on the way of what is put above the fence.
    let fenced =
        composed(&PoolPlan { fence: whole().fence, ..plan }).above("fence", "another map", Box::new(Map::new()));
    assert_eq!(names(&fenced.stack())[2..5], ["map", "map", "fence"]);
}

#[test]
#[should_panic(expected = "there is no layer `cores`")]
fn a_layer_that_is_not_there_cannot_be_changed() {
    let plan = PoolPlan { cores: None, ..whole() };
    let _ = compose(&plan, offers(), &mut ModelPlan::before).unwrap().without("cores");
}

#[test]
fn a_plan_that_is_written_and_read_is_the_same() {
    let plan = whole();
    let text = serde_json::to_string_pretty(&plan).unwrap();
    assert_eq!(serde_json::from_str::<PoolPlan>(&text).unwrap(), plan);
    let unknown = text.replacen("\"admission\"", "\"admisson\"", 1);
    assert!(serde_json::from_str::<PoolPlan>(&unknown).unwrap_err().to_string().contains("admisson"));
}

/// A plan may come from a file that nobody checked.
#[test]
fn a_plan_that_cannot_be_is_refused_with_the_reason() {
    let bad = |change: &dyn Fn(&mut PoolPlan), offers: Vec<Offer>, needle: &str| {
        let mut plan = whole();
        change(&mut plan);
        let Err(why) = build(&plan, offers) else { panic!("built, though {needle}") };
        assert!(why.to_string().contains(needle), "{why}");
    };
    bad(&|_| {}, offers()[..2].to_vec(), "needs 3 devices");
    bad(&|_| {}, vec![], "needs 3 devices");
    bad(&|p| p.cores.as_mut().unwrap().cores = 0, offers(), "cores = 0");
    bad(&|p| p.cache.as_mut().unwrap().size_bytes = Some(1), offers(), "too small");
    bad(&|p| p.cache.as_mut().unwrap().shape.extent_bytes = 7, offers(), "cache: an extent");
    bad(&|p| p.memory.as_mut().unwrap().pages = 0, offers(), "memory");
    bad(&|p| p.logs.as_mut().unwrap().shape.group_bytes = 0, offers(), "logs");
    bad(&|p| p.fence.as_mut().unwrap().slots = 0, offers(), "fence: slots = 0");
    bad(&|p| p.fence.as_mut().unwrap().devices.truncate(1), offers(), "fence: 1 devices");
    bad(&|p| p.scheduler.options.depth = 0, offers(), "depth 0");
    bad(&|p| p.scheduler.kind = SchedulerKind::Ssd, offers(), "flash");
}

/// A predictor from outside is checked when it is read: the layer relies on it.
#[test]
fn a_predictor_without_knots_is_not_read() {
    let text = serde_json::to_string(&whole()).unwrap();
    let (before, rest) = text.split_once("\"knots\":[").unwrap();
    let (_, after) = rest.split_once("]],").unwrap();
    let error = serde_json::from_str::<PoolPlan>(&format!("{before}\"knots\":[],{after}")).unwrap_err();
    assert!(error.to_string().contains("knots"), "{error}");
}
