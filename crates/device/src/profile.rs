//! The profiles that come with Plimsoll, each a TOML file that names the source of every figure.

use crate::disk::{DiskSpec, SpecError};

/// Name and text of each embedded profile.
const PROFILES: [(&str, &str); 6] = [
    ("cheetah-15k5", include_str!("../profiles/cheetah-15k5.toml")),
    ("constellation-es3-1tb", include_str!("../profiles/constellation-es3-1tb.toml")),
    ("hdd-160g-7200", include_str!("../profiles/hdd-160g-7200.toml")),
    ("atlas-10k", include_str!("../profiles/atlas-10k.toml")),
    ("hp-c2247a", include_str!("../profiles/hp-c2247a.toml")),
    ("hp-335h", include_str!("../profiles/hp-335h.toml")),
];

/// Names of the embedded profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROFILES.iter().map(|p| p.0)
}

/// The embedded profile called `name`; the error lists those there are.
pub fn by_name(name: &str) -> Result<DiskSpec, SpecError> {
    let Some((_, text)) = PROFILES.iter().find(|p| p.0 == name) else {
        let known: Vec<_> = names().collect();
        return Err(SpecError::new("profile", format!("`{name}` is unknown; there are {}", known.join(", "))));
    };
    DiskSpec::from_toml(text)
}
