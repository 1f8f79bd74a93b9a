//! Reads a catalogue: a folder with a TOML file for each entry.

use std::{fs, path::Path};

use serde::de::DeserializeOwned;
use tidelane_tests::Stop;

/// Reads the entries that `names` lists, or all entries if `names` is empty. Returns each entry
/// with its name. The name of an entry is the name of its file without `.toml`. Fails if a name in
/// `names` has no entry.
pub fn read<T: DeserializeOwned>(
    folder: &Path,
    names: &[String],
) -> Result<Vec<(String, T)>, Stop> {
    let mut entries = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension == "toml");
        if is_toml && (names.is_empty() || names.contains(&name)) {
            let text = fs::read_to_string(&path)?;
            let entry = toml::from_str(&text)
                .map_err(|error| Stop::Fail(format!("{name}.toml: {error}")))?;
            entries.push((name, entry));
        }
    }
    let unknown = |name: &&String| !entries.iter().any(|(known, _)| known == *name);
    match names.iter().find(unknown) {
        Some(name) => Err(Stop::Fail(format!(
            "there is no entry {name}; --list prints the names of all entries"
        ))),
        None => Ok(entries),
    }
}
