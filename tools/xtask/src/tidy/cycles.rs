//! Finds files of a crate that import each other in a cycle.
//!
//! A submodule, such as `a::part`, may use the items of the modules around the submodule, such as
//! `a`. This use alone makes no cycle. But if `a::part` uses items of `a`, and a file that is
//! neither inside nor around `a` imports `a::part`, then the file thereby also imports `a`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Offence,
    imports::{ModulePath, Modules},
    tests_start,
};
use crate::source::{SourceFile, code_only};

/// Names that a module takes from another module, by the pair of modules. The module that takes the
/// names comes first.
type Imports = BTreeMap<(ModulePath, ModulePath), BTreeSet<String>>;

/// Finds the cycles of imports in every crate.
pub fn check(files: &[SourceFile]) -> Vec<Offence> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for file in files {
        let Some((root, module)) = module_of(&file.path) else {
            continue;
        };
        let code = code_only(&file.text);
        let code = &code[..tests_start(&code)];
        crates
            .entry(root)
            .or_default()
            .add(module, &file.path, code);
    }
    crates.values().flat_map(check_crate).collect()
}

/// Returns the folder of the crate that contains the source file at `path`, and the module path of
/// the file in this crate. Returns `None` for tests and for files that are not the source of a
/// crate.
fn module_of(path: &str) -> Option<(&str, ModulePath)> {
    let (root, module) = path.strip_suffix(".rs")?.rsplit_once("/src/")?;
    let module: ModulePath = match module {
        "lib" | "main" => Vec::new(),
        module => module.split('/').map(str::to_owned).collect(),
    };
    let is_test = |name: &String| ["tests", "props"].contains(&name.as_str());
    (!module.iter().any(is_test)).then_some((root, module))
}

fn check_crate(modules: &Modules) -> Vec<Offence> {
    let imports = downward(&modules.imports());
    let mut next: BTreeMap<&ModulePath, Vec<&ModulePath>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<_, _> = next
        .keys()
        .map(|from| (*from, reach(from, &next)))
        .collect();
    let mut offences = Vec::new();
    let mut seen = BTreeSet::new();
    for (module, reaches) in &reached {
        let returns = |other: &&ModulePath| reached.get(other).is_some_and(|r| r.contains(module));
        let cycle: BTreeSet<&ModulePath> = reaches.iter().copied().filter(returns).collect();
        if cycle.contains(module) && seen.insert(cycle.clone()) {
            offences.extend(offence(modules, &imports, &cycle));
        }
    }
    offences
}

/// Returns all modules that `from` imports, directly or through other modules. `next` has the
/// modules that each module imports directly.
fn reach<'a>(
    from: &'a ModulePath,
    next: &BTreeMap<&'a ModulePath, Vec<&'a ModulePath>>,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        let targets = next.get(module).into_iter().flatten();
        open.extend(targets.copied().filter(|target| reached.insert(*target)));
    }
    reached
}

/// Returns `imports` without the imports by which a submodule uses a module around the submodule.
/// If another file imports the submodule, this file gets an import of the used module instead,
/// except if the file is the used module, or is inside or around the used module.
fn downward(imports: &Imports) -> Imports {
    let is_upward = |from: &ModulePath, to: &ModulePath| from.starts_with(to);
    let mut downward = Imports::new();
    for ((from, to), names) in imports {
        if is_upward(from, to) {
            continue;
        }
        let mut add = |to: &ModulePath, names: &BTreeSet<String>| {
            let key = (from.clone(), to.clone());
            downward
                .entry(key)
                .or_default()
                .extend(names.iter().cloned());
        };
        add(to, names);
        for ((part, around), names) in imports {
            let passes = part == to && is_upward(part, around) && !is_upward(from, around);
            if passes && !around.starts_with(from) {
                add(around, names);
            }
        }
    }
    downward
}

/// Returns the offence of the files in `cycle`.
fn offence(modules: &Modules, imports: &Imports, cycle: &BTreeSet<&ModulePath>) -> Option<Offence> {
    let first = modules.file(cycle.first()?)?;
    let mut text = format!("{first}: {} files import each other:", cycle.len());
    for ((from, to), names) in imports {
        if cycle.contains(from) && cycle.contains(to) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let [from, to] = [from, to].map(|module| modules.file(module).unwrap_or("the root"));
            text += &format!("\n  {from} -> {to}: {}", names.join(", "));
        }
    }
    Some(Offence {
        key: format!("import-cycle {first}"),
        size: cycle.len(),
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the offences in files with these paths and texts.
    fn offences(files: &[(&str, &str)]) -> Vec<Offence> {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        check(&files.iter().map(file).collect::<Vec<_>>())
    }

    /// Returns the keys and sizes of the offences in files with these paths and texts.
    fn cycles(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let found = offences(files).into_iter();
        found.map(|offence| (offence.key, offence.size)).collect()
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let found = cycles(&[
            ("x/src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
            ("x/src/a.rs", "use crate::b::B;"),
            ("x/src/b.rs", "fn f() { crate::c::g() }"),
            ("x/src/c.rs", "use super::a;"),
            ("x/src/d.rs", "use crate::a;"),
        ]);
        assert_eq!(found, [("import-cycle x/src/a.rs".to_owned(), 3)]);
    }

    #[test]
    fn the_text_names_each_import() {
        let found = offences(&[
            ("x/src/a.rs", "use crate::b::{B, C};\npub struct A;"),
            (
                "x/src/b.rs",
                "use crate::a::A;\npub struct B; pub struct C;",
            ),
        ]);
        let text = "x/src/a.rs: 2 files import each other:\n  x/src/a.rs -> x/src/b.rs: B, C\n  \
                    x/src/b.rs -> x/src/a.rs: A";
        assert_eq!(found[0].text, text);
    }

    #[test]
    fn imports_in_one_direction_are_no_cycle() {
        let found = cycles(&[
            ("x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;"),
            ("x/src/a.rs", "use crate::{b::B, c::C};"),
            (
                "x/src/b.rs",
                "use crate::c::C;\n#[cfg(test)]\nmod tests { use crate::A; }",
            ),
            (
                "x/src/c.rs",
                "use std::a; // use crate::a\nfn f() { \"crate::a::A\" }",
            ),
            ("y/src/c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, []);
    }

    #[test]
    fn a_submodule_is_a_part_of_its_module() {
        let a = ("x/src/a.rs", "mod part;\nuse part::Part;\npub struct A;");
        let part = ("x/src/a/part.rs", "use super::A;\npub struct Part;");
        assert_eq!(cycles(&[a, part]), []);
        // The submodule uses its module. A file that imports the submodule therefore also imports
        // the module.
        let b = ("x/src/b.rs", "use crate::a::part::Part;\npub struct B;");
        assert_eq!(cycles(&[a, part, b]), []);
        let a = ("x/src/a.rs", "mod part;\nuse crate::b::B;\npub struct A;");
        let found = cycles(&[a, part, b]);
        assert_eq!(found, [("import-cycle x/src/a.rs".to_owned(), 2)]);
        // Submodules of one module may not import each other.
        let other = (
            "x/src/a/other.rs",
            "use super::part::Part;\npub struct Other;",
        );
        let part = (
            "x/src/a/part.rs",
            "use super::other::Other;\npub struct Part;",
        );
        let found = cycles(&[("x/src/a.rs", ""), part, other]);
        assert_eq!(found, [("import-cycle x/src/a/other.rs".to_owned(), 2)]);
    }
}
