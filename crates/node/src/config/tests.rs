use super::*;

fn error(text: &str) -> String {
    Config::parse(text, Path::new("node.toml")).expect_err(text).to_string()
}

/// Facts that only the node finds out decide which data a start trusts: no section takes them from a user.
#[test]
fn keys_that_only_the_node_may_set_are_refused() {
    let keys = [
        "known = [[1, 1, true]]",
        "given_up = [[1, 1, 2]]",
        "generation = 1",
        "nvram_salt = 7",
        "profile_text = \"\"",
        "cache_profile_text = \"\"",
        "budgets = true",
        "started_s_of_day = 0",
    ];
    let sections = [
        "",
        "[pool.cache]\nfile = \"c\"\n",
        "[pool.cache]\nfile = \"c\"\n[pool.cache.nvram]\nfile = \"n\"\n",
        "[pool.logs]\n",
        "[pool.fence]\nslots = 2\n",
    ];
    let example = include_str!("../../../../plimsoll.example.toml");
    for key in keys {
        let name = key.split(' ').next().expect("a name");
        for section in sections {
            let text = format!("{POOL}{section}{key}\n");
            let line = text.lines().count();
            let said = error(&text);
            let refusal = format!("node.toml:{line}: unknown field `{name}`");
            assert!(said.lines().any(|l| l.starts_with(&refusal)), "{said}");
        }
        assert!(!example.lines().any(|l| l.trim_start_matches(['#', ' ']).starts_with(&format!("{name} ="))), "{name}");
    }
}

const POOL: &str = "[[pool]]\nname = \"p\"\ndevice = { null = true, size = \"1GiB\" }\n";

#[test]
fn errors_name_file_line_and_key() {
    assert_eq!(error(""), "node.toml: no [[pool]]: a node needs at least one");
    assert!(error(&format!("{POOL}dept = 3\n")).starts_with("node.toml:4: unknown field `dept`"));
    assert!(error("[listen]\ntcp = \"here\"\n").starts_with("node.toml:2: "));
    assert!(error(&format!("{POOL}[limits]\nconnections = 0\n")).contains("connections = 0 would keep everybody out"));
    assert!(
        error(&format!("{POOL}[limits]\npayload_time = \"1s\"\n"))
            .contains("limits.payload_time is shorter than limits.payload_idle")
    );
    let limits = |keys: &str| error(&format!("{POOL}[limits]\n{keys}\n"));
    assert!(limits("payload_rate = \"0B\"").contains("limits.payload_rate = 0 would"));
    assert!(
        limits("connections = 10\nconnections_per_peer = 11")
            .contains("limits.connections_per_peer = 11 is more than limits.connections = 10")
    );
    assert!(limits("handshakes_per_peer = 1025").contains("limits.handshakes_per_peer = 1025 is more than"));
    let two = format!("{POOL}{POOL}");
    assert_eq!(error(&two), "node.toml:5: pool `p` is declared twice");
    let volume = "[[volume]]\nname = \"v\"\npool = \"q\"\nsize = \"1MiB\"\ntenant = \"t\"\n";
    assert_eq!(error(&format!("{POOL}{volume}")), "node.toml:6: volume `v`: there is no pool `q`; there are: p");
    let tenant = "[[tenant]]\nname = \"t\"\nclass = \"latency-critical\"\n";
    assert!(error(&format!("{POOL}{tenant}")).starts_with("node.toml:6: tenant `t`: a latency-critical tenant needs"));
    assert!(
        error("[[pool]]\nname = \"p\"\ndevice = { size = \"3 apples\" }\n")
            .contains("node.toml:3: `3 apples` is not a size")
    );
    assert!(error("[[pool]]\nname = \"p\"\ndevice = {}\n").starts_with("node.toml:2: pool `p`: device needs `file"));
    assert_eq!(
        error(&format!("{POOL}cores = 4\ncore_policy = \"qwon\"\n")),
        "node.toml:5: pool `p`: core_policy `qwon` is unknown: qwin, qwin-window, share-everything, partial-sharing, \
         two-priorities, cake, shenango, static or mclock"
    );
    assert_eq!(error(&format!("{POOL}cores = 0\n")), "node.toml:2: pool `p`: cores = 0 is not between 1 and 1024");
    assert!(error(&format!("{POOL}core_depth = 2\n")).contains("core_depth means nothing without `cores`"));
    let cores = |policy: &str, keys: &str| {
        let tenant = format!("[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n{keys}\n");
        error(&format!("{POOL}cores = 4\ncore_policy = \"{policy}\"\n{tenant}"))
    };
    assert_eq!(
        cores("qwin", "cores = 2"),
        "node.toml:7: tenant `t`: cores is for pools with core_policy = \"static\": no pool has it"
    );
    let slack = error(&format!("{POOL}cores = 4\ncore_slack = [\"2ms\", \"1ms\"]\n"));
    assert!(slack.contains("core_slack: 2.00ms at least is above 1.00ms"), "{slack}");
    assert!(cores("mclock", "limit_iops = 0").ends_with("limit_iops = 0 would be nothing: take it out"));
    assert!(cores("mclock", "reservation_iops = 9\nlimit_iops = 8").contains("9 is more than limit_iops 8"));
    assert!(cores("qwin", "weight = 20000").contains("weight 20000 is not between 1 and 10000"));
    let grant = "[[grant]]\npeer = \"everyone\"\nvolumes = [\"*\"]\n";
    assert!(error(&format!("{POOL}{grant}")).starts_with("node.toml:5: peer `everyone` is unknown"));
}

#[test]
fn sizes() {
    for (text, n) in [("512", 512), ("64KiB", 65536), ("8 GiB", 8 << 30), ("2T", 2 << 40)] {
        assert_eq!(text.parse::<ByteSize>().unwrap().0, n);
    }
    for text in ["", "GiB", "-1", "1.5GiB", "99999999TiB", "4XB"] {
        assert!(text.parse::<ByteSize>().is_err(), "{text}");
    }
}

#[test]
fn a_subsystem_is_checked_against_its_volume() {
    let tables = "[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n[[volume]]\nname = \"v\"\npool = \"p\"\nsize = \"1MiB\"\ntenant = \"t\"\n";
    let named = |nqn: &str, keys: &str, volume: &str| {
        let listen = "[listen]\nnvme_tcp = \"127.0.0.1:0\"\n";
        format!("{listen}[[subsystem]]\nnqn = \"{nqn}\"\n{keys}\n{POOL}{tables}{volume}")
    };
    let wrong = |nqn: &str, keys: &str, volume: &str| error(&named(nqn, keys, volume));
    let nqn = "nqn.2026-11.org.example:v";
    assert!(Config::parse(&named(nqn, "export = \"v?deadline=9ms\"", ""), Path::new("t")).is_ok());
    let several = named(nqn, "export = \"v?replica=read\"\npath = 16", "read_only = true");
    assert!(Config::parse(&several, Path::new("t")).is_ok());
    assert!(wrong("v", "export = \"v\"", "").starts_with("node.toml:4: subsystem `v`: an NQN is a text such as nqn."));
    let at_export = format!("node.toml:5: subsystem `{nqn}`: ");
    for (export, what) in [
        ("w", "there is no [[volume]] `w`"),
        ("v?deadline=soon", "deadline: "),
        ("v?replica=write", "an NVMe host uses a replica with replica=read"),
    ] {
        let error = wrong(nqn, &format!("export = \"{export}\""), "");
        assert!(error.starts_with(&format!("{at_export}{what}")), "{error}");
    }
    let at_path = format!("node.toml:6: subsystem `{nqn}`: ");
    for (path, what) in [("1", "several nodes can serve a volume only if"), ("17", "path 17 is not between 1 and 16")] {
        let error = wrong(nqn, &format!("export = \"v\"\npath = {path}"), "");
        assert!(error.starts_with(&format!("{at_path}{what}")), "{error}");
    }
    let unmarked = wrong(nqn, "export = \"v\"\npath = 1", "read_only = true");
    assert!(
        unmarked.starts_with(&format!("{at_path}several nodes can serve a volume only if one whose copy")),
        "{unmarked}"
    );
    let nobody = named(nqn, "export = \"v\"", "").replace("nvme_tcp = \"127.0.0.1:0\"", "");
    assert!(error(&nobody).contains("nobody can connect: set listen.nvme_tcp, too"));
    for peer in ["host:v", "host:nqn.a@nowhere", "host:"] {
        let grant = format!("{POOL}[[grant]]\npeer = \"{peer}\"\nvolumes = [\"*\"]\n");
        assert!(error(&grant).contains("host:NQN or host:NQN@ADDRESS"), "{peer}");
    }
}

/// A reload of an endless file would take all memory, and the node with it.
#[test]
fn a_file_that_is_too_long_is_not_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("node.toml");
    let made = std::fs::File::create(&file).expect("a file");
    made.set_len(FILE_BYTES_MAX + 1).expect("a sparse file");
    for file in [file.as_path(), Path::new("/dev/zero")] {
        let error = Config::load(file).expect_err("it is too long").to_string();
        assert!(error.contains("longer than 32 MiB"), "{error}");
    }
}
