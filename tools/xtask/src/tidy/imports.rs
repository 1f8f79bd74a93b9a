//! Finds the modules of a crate. For each module, finds the other modules from which the module
//! takes names.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::is_name_char;

/// The names of the modules from the crate's root to a module, or to an item in the module.
pub type ModulePath = Vec<String>;

/// The source of one crate, read far enough to find the module that defines a name.
#[derive(Debug, Default)]
pub struct Modules {
    /// The path of the file of each module that has its own file, except for the crate's root.
    files: BTreeMap<ModulePath, String>,
    /// All modules: modules with a file of their own, and modules in braces.
    all: BTreeSet<ModulePath>,
    /// The path for which a name stands because of a `use` declaration. The key consists of the
    /// module that contains the declaration, and the name.
    used: BTreeMap<(ModulePath, String), Vec<String>>,
    /// The paths that each module imports with `*`.
    globs: BTreeMap<ModulePath, Vec<Vec<String>>>,
    /// The items that each module defines.
    items: BTreeSet<ModulePath>,
    /// The paths that a module mentions in its code and in its `use` declarations, but not in
    /// `pub use`. Each entry consists of the module and a path.
    mentions: Vec<(ModulePath, Vec<String>)>,
}

/// Words that stand before the name of an item.
const ITEMS: [&str; 8] = [
    "fn", "struct", "enum", "union", "trait", "type", "const", "static",
];

/// Largest number of steps from a name to its definition. Each `use` declaration on the way takes
/// at least one step.
const REEXPORTS_MAX: usize = 16;

impl Modules {
    /// Adds the file of the module `module`. `code` is the file's code without comments, literals
    /// and tests.
    pub fn add(&mut self, module: ModulePath, file: &str, code: &str) {
        if !module.is_empty() {
            self.files.insert(module.clone(), file.to_owned());
        }
        self.all.extend([Vec::new(), module.clone()]);
        // The modules around the current token, each with the depth of its opening brace. The
        // file's module has no brace.
        let mut scopes = vec![(module, usize::MAX)];
        let mut at = 0;
        let mut depth = 0;
        let mut previous = "";
        while at < code.len() {
            let (token, len) = next_token(&code[at..]);
            let scope = scopes.last().expect("the file's module").0.clone();
            let mut end = at + len;
            match token {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if scopes.last().is_some_and(|(_, outer)| *outer == depth) {
                        scopes.pop();
                    }
                }
                "use" => {
                    let until = code[end..].find(';').map_or(code.len(), |len| end + len);
                    self.add_use(&scope, &[], &code[end..until], previous == "pub");
                    end = until;
                }
                _ if is_name(token) && previous == "mod" => {
                    let inner = [scope.as_slice(), &[token.to_owned()]].concat();
                    if code[end..].trim_start().starts_with('{') {
                        self.all.insert(inner.clone());
                        scopes.push((inner, depth));
                    }
                }
                _ if is_name(token) && ITEMS.contains(&previous) => {
                    let item = [scope.as_slice(), &[token.to_owned()]].concat();
                    self.items.insert(item);
                }
                _ if is_name(token) && previous != "::" && code[end..].starts_with("::") => {
                    let len = path_len(&code[at..]);
                    let path = code[at..at + len].split("::").map(str::to_owned);
                    self.mentions.push((scope, path.collect()));
                    end = at + len;
                }
                _ => {}
            }
            if !token.trim().is_empty() {
                previous = token;
            }
            at = end;
        }
    }

    /// Adds the names of one tree (a part such as `b::{C, D}`) of a `use` declaration in the module
    /// `scope`. `prefix` is the path in front of the tree. `public` is true for `pub use`.
    fn add_use(&mut self, scope: &ModulePath, prefix: &[String], tree: &str, public: bool) {
        let tree = tree.trim();
        if let Some(list) = tree.strip_prefix('{') {
            let list = list.strip_suffix('}').unwrap_or(list);
            for part in split_list(list) {
                self.add_use(scope, prefix, part, public);
            }
            return;
        }
        let (path, alias) = match tree.split_once(" as ") {
            Some((path, alias)) if !path.contains('{') => (path.trim(), Some(alias.trim())),
            _ => (tree, None),
        };
        let (first, rest) = match path.split_once("::") {
            Some((first, rest)) if first.trim().is_empty() => {
                return self.add_use(scope, prefix, rest, public);
            }
            Some((first, rest)) => (first.trim(), Some(rest)),
            None => (path, None),
        };
        let mut whole = prefix.to_vec();
        if let Some(rest) = rest {
            whole.push(first.to_owned());
            // The alias belongs to the last name of the path.
            let rest = alias.map_or(rest.to_owned(), |alias| format!("{rest} as {alias}"));
            return self.add_use(scope, &whole, &rest, public);
        }
        match first {
            "" => {}
            "*" => {
                let globs = self.globs.entry(scope.clone()).or_default();
                globs.push(whole.clone());
                self.add_import(scope, whole, public);
            }
            _ => {
                if first != "self" || whole.is_empty() {
                    whole.push(first.to_owned());
                }
                let name = alias.unwrap_or_else(|| whole.last().map_or("", String::as_str));
                let key = (scope.clone(), name.to_owned());
                self.used.insert(key, whole.clone());
                self.add_import(scope, whole, public);
            }
        }
    }

    /// Adds a path of a `use` declaration to the mentions if the declaration is not a `pub use`. A
    /// module that only exports a name by `pub use` does not count as a user of the name.
    fn add_import(&mut self, scope: &ModulePath, path: Vec<String>, public: bool) {
        if !public {
            self.mentions.push((scope.clone(), path));
        }
    }

    /// Returns the names that each module takes from another module of the crate. The key consists
    /// of the module that takes the names, and the other module. A module without a file of its own
    /// counts as a part of the nearest module around it that has a file.
    pub fn imports(&self) -> BTreeMap<(ModulePath, ModulePath), BTreeSet<String>> {
        let mut imports: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for (scope, path) in &self.mentions {
            let Some(target) = self.resolve(scope, path, REEXPORTS_MAX) else {
                continue;
            };
            let (from, to) = (self.with_file(scope), self.with_file(&target));
            if from != to {
                let name = target.get(to.len()..).and_then(<[String]>::first);
                let name = name.map_or("the module", String::as_str);
                imports
                    .entry((from, to))
                    .or_default()
                    .insert(name.to_owned());
            }
        }
        imports
    }

    /// Returns the path of the file of a module. Returns `None` for the crate's root and for a
    /// module without a file of its own.
    pub fn file(&self, module: &ModulePath) -> Option<&str> {
        self.files.get(module).map(String::as_str)
    }

    /// Returns the longest prefix of `path` that is a module with a file of its own. Returns the
    /// empty path, which is the crate's root, if there is no such module.
    fn with_file(&self, path: &ModulePath) -> ModulePath {
        let mut path = path.clone();
        while !path.is_empty() && !self.files.contains_key(&path) {
            path.pop();
        }
        path
    }

    /// Returns the path from the crate's root to the item that `path` names in the module `scope`.
    /// Returns `None` if the crate does not define the item, or if more than `budget` steps are
    /// needed to find the item.
    fn resolve(&self, scope: &ModulePath, path: &[String], budget: usize) -> Option<ModulePath> {
        let budget = budget.checked_sub(1)?;
        let mut names = path.iter();
        let mut at = match names.next()?.as_str() {
            "crate" => Vec::new(),
            "self" => scope.clone(),
            "super" => parent(scope)?,
            first => self.named(scope, first, budget)?,
        };
        for name in names {
            at = if name == "super" {
                parent(&at)?
            } else if self.all.contains(&at) {
                match self.named(&at, name, budget) {
                    Some(target) => target,
                    // The name comes from another crate.
                    None if self.used.contains_key(&(at.clone(), name.clone())) => return None,
                    None => [at.as_slice(), std::slice::from_ref(name)].concat(),
                }
            } else {
                // The name belongs to a type.
                break;
            };
        }
        Some(at)
    }

    /// Returns the path of the item or module that `name` denotes in the module `scope`, or `None`
    /// if the crate does not define such an item.
    fn named(&self, scope: &ModulePath, name: &str, budget: usize) -> Option<ModulePath> {
        let own = [scope.as_slice(), &[name.to_owned()]].concat();
        if self.all.contains(&own) || self.items.contains(&own) {
            return Some(own);
        }
        if let Some(path) = self.used.get(&(scope.clone(), name.to_owned())) {
            let loops = path.len() == 1 && path[0] == name;
            return if loops {
                None
            } else {
                self.resolve(scope, path, budget)
            };
        }
        let globs = self.globs.get(scope).into_iter().flatten();
        globs
            .filter_map(|glob| self.resolve(scope, glob, budget))
            .find_map(|module| self.named(&module, name, budget.checked_sub(1)?))
    }
}

fn parent(module: &ModulePath) -> Option<ModulePath> {
    Some(module.split_last()?.1.to_vec())
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the token at the start of `code` (a name, `::`, or one character), and the length of the
/// token in bytes.
fn next_token(code: &str) -> (&str, usize) {
    let len = if code.starts_with("::") {
        2
    } else {
        match code.find(|c| !is_name_char(c)) {
            Some(0) => code.chars().next().map_or(1, char::len_utf8),
            Some(len) => len,
            None => code.len(),
        }
    };
    (&code[..len], len)
}

/// Returns the length in bytes of the path at the start of `code`, such as `a::b` in `a::b(1)`.
fn path_len(code: &str) -> usize {
    let mut len = 0;
    loop {
        len += code[len..]
            .find(|c| !is_name_char(c))
            .unwrap_or(code.len() - len);
        match code[len..].strip_prefix("::") {
            Some(rest) if rest.starts_with(is_name_char) => len += 2,
            _ => return len,
        }
    }
}

/// Splits a list at its commas, except at the commas of lists inside it.
fn split_list(list: &str) -> Vec<&str> {
    let mut depth = 0;
    list.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the imports of the modules with these paths and texts, as text.
    fn imports(modules: &[(&str, &str)]) -> Vec<String> {
        let mut all = Modules::default();
        for (module, code) in modules {
            let path = module.split('/').filter(|name| !name.is_empty());
            all.add(path.map(str::to_owned).collect(), module, code);
        }
        let imports = all.imports().into_iter();
        let shown = imports.map(|((from, to), names)| {
            let names: Vec<String> = names.into_iter().collect();
            format!("{} {} {}", from.join("/"), to.join("/"), names.join(","))
        });
        shown.collect()
    }

    #[test]
    fn each_form_of_an_import_is_read() {
        let b = (
            "b",
            "pub struct B; pub fn g() {} pub mod inner { pub fn h() {} }",
        );
        for (code, found) in [
            ("use crate::b::B;", "a b B"),
            (
                "use crate::{b::{self, B as X}, b::g};",
                "a b B,g,the module",
            ),
            ("use super::b::B;", "a b B"),
            ("use crate::b::*;", "a b the module"),
            ("fn f() { crate::b::g::<u8>() }", "a b g"),
            ("fn f() { crate::b::B::new() }", "a b B"),
            ("fn f() { crate::b::inner::h() }", "a b inner"),
            ("mod inner { use super::super::b::B; }", "a b B"),
            (
                "mod inner { use crate::b::g; }\nfn f() { inner::g() }",
                "a b g",
            ),
        ] {
            assert_eq!(imports(&[("a", code), b]), [found], "{code}");
        }
        for code in [
            "use other::b::B;",
            "use my_crate::b;",
            "mod b { } use b::X;",
            "",
        ] {
            assert_eq!(imports(&[("a", code), b]), [""; 0], "{code}");
        }
    }

    #[test]
    fn a_name_is_taken_from_the_module_that_defines_it() {
        let root = (
            "",
            "mod a; mod b; mod c;\npub use self::{b::B as Renamed, c::*};",
        );
        let b = ("b", "pub struct B;");
        let c = ("c", "pub fn g() {}");
        for (code, found) in [
            ("use crate::Renamed;", "a b B"),
            ("use super::Renamed;", "a b B"),
            ("use crate::g;", "a c g"),
        ] {
            assert_eq!(imports(&[root, ("a", code), b, c]), [found], "{code}");
        }
    }

    #[test]
    fn names_that_lead_in_a_circle_end() {
        let found = imports(&[("a", "use crate::b::X;"), ("b", "use crate::a::X;")]);
        assert_eq!(found, [""; 0]);
    }
}
