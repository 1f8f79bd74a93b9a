//! Runs every input of the corpora, and some prefixes of every input, through its target.

use std::{fs, path::PathBuf};

use tidelane_fuzz::TARGETS;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../corpus")
        .join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.clone(), fs::read(&path).expect("a readable input")))
        .collect()
}

#[test]
fn every_input_of_the_corpora_passes() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(inputs.len() >= 10, "{name} has a corpus");
        for (path, input) in &inputs {
            println!("{}", path.display());
            target(input);
        }
        println!("{name}: {} inputs", inputs.len());
    }
}

/// Runs at most four prefixes of every input, at equal distances. Each prefix is an input, too.
#[test]
fn every_prefix_of_a_corpus_input_passes() {
    for (name, target) in TARGETS {
        for (path, input) in corpus(name) {
            println!("{}", path.display());
            for end in (0..input.len()).step_by(1 + input.len() / 4) {
                target(&input[..end]);
            }
        }
    }
}
