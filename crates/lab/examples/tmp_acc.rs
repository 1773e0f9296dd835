use plimsoll_lab::experiment::{by_id, Inputs};
fn main() {
    let id = std::env::args().nth(1).unwrap();
    let quick = std::env::args().nth(2).unwrap() == "quick";
    let e = by_id(&id).unwrap();
    for t in std::env::args().skip(3) {
        let inputs = Inputs { data: None, traces: vec![t.clone().into()], quick };
        let began = std::time::Instant::now();
        let rows = e.rows(&inputs);
        let s = e.sample(1, &inputs).unwrap();
        println!("== {t} {:?}", began.elapsed());
        for (r, v) in rows.iter().zip(&s.values) {
            println!("{:>12} {}  {}", v.map_or("-".into(), |v| format!("{v:.4}")), r.unit, r.name);
        }
    }
}
