//! A deterministic run of the fuzz targets: each seed input, mutated by a seeded generator, through every reader.
//! The same targets run under libFuzzer; what that finds joins `tests/seeds`.

use plimsoll_base::Rng;
use plimsoll_trace::Format;
use plimsoll_trace::fuzz;
use std::path::Path;

/// Mutants of each seed.
const MUTANTS: u64 = 400;

/// The seeds in the order of their names.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|p| (p.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(p).unwrap())).collect()
}

/// Pieces that parsers trip over.
const TOKENS: [&[u8]; 14] = [
    b"18446744073709551615",
    b"9223372036854775807",
    b"99999999999999999999999",
    b"-1",
    b"0x",
    b".",
    b"",
    b",,",
    b"\n\n",
    b"\0",
    b"\xff\xfe",
    b"1e309",
    b"NaN",
    b"0",
];

fn mutate(seed: &[u8], others: &[(String, Vec<u8>)], rng: &mut Rng) -> Vec<u8> {
    let mut b = seed.to_vec();
    for _ in 0..=rng.below(4) {
        let at = rng.below(b.len() as u64 + 1) as usize;
        let to = (at + rng.below(12) as usize).min(b.len());
        match rng.below(6) {
            0 if at < b.len() => b[at] ^= 1 << rng.below(8),
            1 => drop(b.splice(at..to, TOKENS[rng.below(TOKENS.len() as u64) as usize].iter().copied())),
            2 => b.truncate(at),
            3 => {
                let copy = b[at..to].to_vec();
                let into = rng.below(b.len() as u64 + 1) as usize;
                b.splice(into..into, copy);
            }
            4 => drop(b.drain(at..to)),
            _ => {
                let other = &others[rng.below(others.len() as u64) as usize].1;
                let from = rng.below(other.len() as u64) as usize;
                b.truncate(at);
                b.extend(&other[from..]);
            }
        }
    }
    b
}

#[test]
fn every_format_has_a_seed_that_is_detected_and_reads() {
    let seeds = seeds();
    for format in Format::ALL {
        let (_, bytes) =
            seeds.iter().find(|(name, _)| name == format.name()).unwrap_or_else(|| panic!("no seed for {format}"));
        let options = Default::default();
        let r = if format == Format::Parquet {
            plimsoll_trace::TraceReader::from_parquet_bytes("seed", bytes.clone(), &options).unwrap()
        } else {
            let input = Box::new(std::io::Cursor::new(bytes.clone()));
            plimsoll_trace::TraceReader::from_read("seed", input, &options).unwrap()
        };
        assert_eq!(r.format(), format);
        let records: Vec<_> = r.map(Result::unwrap).collect();
        assert!(records.len() >= 2, "{format}");
    }
}

#[test]
fn no_mutant_makes_a_reader_panic() {
    let seeds = seeds();
    let mut rng = Rng::new(1, "fuzz smoke");
    for (name, bytes) in &seeds {
        for _ in 0..MUTANTS {
            let mutant = mutate(bytes, &seeds, &mut rng);
            fuzz::detected(&mutant);
            // Its own reader must see it even where detection would choose another or none.
            if let Ok(format) = name.parse() {
                fuzz::as_format(format, &mutant);
            }
            fuzz::as_format(Format::ALL[rng.below(Format::ALL.len() as u64) as usize], &mutant);
        }
    }
}
