//! Compares the manual pages of the C interface with the header `tidelane_rings.h`, compares the
//! header with the functions that the shared library exports, and checks the form of the pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::programs::{crate_root, library, scratch};

/// Titles of the sections (`.Sh`) in the page of a function, in their order.
const SECTIONS: [&str; 7] = [
    "NAME",
    "SYNOPSIS",
    "DESCRIPTION",
    "RETURN VALUE",
    "ERRORS",
    "EXAMPLE",
    "SEE ALSO",
];

/// Returns the text with each sequence of white space replaced by one space.
fn normalised(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the prototype of each function in the header, by the name of the function.
fn prototypes() -> BTreeMap<String, String> {
    let header = fs::read_to_string(crate_root().join("include/tidelane_rings.h"));
    let header = header.expect("the header");
    let statements = header.split(';').map(|statement| {
        let lines = statement.lines();
        let code = lines.filter(|line| !line.starts_with("/*") && !line.starts_with('#'));
        normalised(&code.collect::<Vec<_>>().join(" "))
    });
    let named = statements.filter_map(|statement| {
        let name = statement.split_once('(')?.0.rsplit(' ').next()?.to_owned();
        name.starts_with("tlr_").then_some((name, statement))
    });
    named.collect()
}

/// Returns the text of each page in a section of the manual, by the name of the page. `section` is
/// the end of the file names: `.3` for functions, `.7` for overviews.
fn pages(section: &str) -> BTreeMap<String, String> {
    let files = fs::read_dir(crate_root().join("man")).expect("the pages");
    let names = files.map(|file| file.expect("a page").file_name());
    let names = names.map(|name| name.into_string().expect("text"));
    let of_section = names.filter_map(|name| Some(name.strip_suffix(section)?.to_owned()));
    of_section
        .map(|name| {
            let path = crate_root().join("man").join(format!("{name}{section}"));
            (name, fs::read_to_string(path).expect("a page"))
        })
        .collect()
}

/// Returns the lines below the title `section` (`.Sh`) of a page.
fn lines_of<'a>(page: &'a str, section: &str) -> Vec<&'a str> {
    let start = format!(".Sh {section}");
    let lines = page.lines().skip_while(|line| *line != start).skip(1);
    lines.take_while(|line| !line.starts_with(".Sh ")).collect()
}

/// Returns the names of the functions that the shared library exports.
fn exported() -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only"])
        .arg(library("so"))
        .output()
        .expect("nm of binutils");
    let text = String::from_utf8(output.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.rsplit(' ').next());
    let ours = names.filter(|name| name.starts_with("tlr_"));
    ours.map(str::to_owned).collect()
}

#[test]
fn each_function_has_a_prototype_and_a_page() {
    let header: BTreeSet<String> = prototypes().into_keys().collect();
    assert!(header.len() > 20, "{header:?}");
    assert_eq!(header, exported());
    assert_eq!(header, pages(".3").into_keys().collect());
}

/// The synopsis in the page of each function is the prototype in the header.
#[test]
fn each_synopsis_is_the_prototype() {
    let prototypes = prototypes();
    for (name, page) in pages(".3") {
        let synopsis = lines_of(&page, "SYNOPSIS");
        let [include, result, call] = synopsis[..] else {
            panic!("{name}: {synopsis:?}");
        };
        assert_eq!(include, ".In tidelane_rings.h", "{name}");
        let result = result.strip_prefix(".Ft ").expect("a type");
        let call = call.strip_prefix(&format!(".Fn {name} "));
        let arguments = call.expect("the function").trim_matches('"');
        let arguments = arguments.replace("\" \"", ", ");
        let written = format!("{result} {name}({arguments})");
        assert_eq!(written, prototypes[&name]);
    }
}

/// Each page of a function has all sections, and the overview (`tlr.7`) lists the page. If the
/// first cross-reference (`Xr`) in a line names a function, this function has a page.
#[test]
fn each_page_is_whole() {
    let (functions, overviews) = (pages(".3"), pages(".7"));
    assert_eq!(overviews.len(), 1);
    let overview = &overviews["tlr"];
    for (name, page) in &functions {
        let titles = page.lines().filter_map(|line| line.strip_prefix(".Sh "));
        assert_eq!(titles.collect::<Vec<_>>(), SECTIONS, "{name}");
        let title = format!(".Dt {} 3", name.to_uppercase());
        assert!(page.lines().any(|line| line == title), "{name}");
        for section in SECTIONS {
            assert!(!lines_of(page, section).is_empty(), "{name}: {section}");
        }
        let named = lines_of(page, "NAME");
        assert_eq!(named[0], format!(".Nm {name}"));
        let summary = named[1].strip_prefix(".Nd ").expect("a summary");
        let line = format!(".It Xr {name} 3\n{summary}\n");
        assert!(overview.contains(&line), "{name} in the overview");
        assert!(page.contains(".Xr tlr 7"), "{name}");
    }
    let all = functions.values().chain(overviews.values());
    for line in all.flat_map(|page| page.lines()) {
        let mut words = line
            .split([' ', ','])
            .skip_while(|word| *word != "Xr" && *word != ".Xr");
        if let (Some(_), Some(name)) = (words.next(), words.next())
            && name.starts_with("tlr_")
        {
            assert!(functions.contains_key(name), "{line}");
        }
    }
}

/// The example of each page compiles without a warning. The test includes `tidelane_rings.h` and a
/// few headers of the system before the example.
#[test]
fn each_example_compiles() {
    let pages = pages(".3").into_iter().chain(pages(".7"));
    for (name, page) in pages {
        let lines = lines_of(&page, "EXAMPLE");
        let lines = lines.into_iter().skip_while(|line| *line != ".Bd -literal");
        let code: Vec<&str> = lines.skip(1).take_while(|line| *line != ".Ed").collect();
        assert!(code.len() > 3, "{name} has no example");
        let headers = ["errno.h", "netinet/in.h", "netinet/tcp.h", "string.h"];
        let headers = headers.map(|header| format!("#include <{header}>\n"));
        let text = format!(
            "{}#include \"tidelane_rings.h\"\n{}\n",
            headers.concat(),
            code.join("\n").replace("\\e", "\\")
        );
        let source = scratch().join(format!("{name}-example.c"));
        fs::write(&source, text).expect("a file");
        let status = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
            .args(["-fsyntax-only", "-I"])
            .arg(crate_root().join("include"))
            .arg(&source)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "the example of {name} does not compile");
    }
}

/// Runs a checker of manual pages on each page. Panics if the checker reports an error. If the
/// checker is not installed, prints a message and returns false.
fn is_accepted_by(tool: &str, arguments: &[&str]) -> bool {
    let all = pages(".3")
        .into_keys()
        .map(|name| name + ".3")
        .chain(["tlr.7".to_owned()]);
    for page in all {
        let path: PathBuf = crate_root().join("man").join(&page);
        let output = Command::new(tool)
            .args(arguments)
            .arg(&path)
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "80")
            .stdin(Stdio::null())
            .output();
        let Ok(output) = output else {
            eprintln!("skipped: {tool} is not installed");
            return false;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tool}, {page}: {errors}");
        assert!(errors.is_empty(), "{tool}, {page}: {errors}");
        assert!(!output.stdout.is_empty() || tool == "mandoc", "{page}");
    }
    true
}

#[test]
fn each_page_is_accepted_by_man() {
    is_accepted_by("man", &["--warnings=all", "-l"]);
    is_accepted_by("mandoc", &["-Tlint", "-Werror"]);
}
