//! A program of an image without the script that wraps it: a sandbox has no shell.
//!
//! The script (`vm-images/src/runtime.rs`) sets variables and executes the image's own dynamic
//! loader with the program.

use std::path::{Path, PathBuf};

/// Command that a wrapper script executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Path of the executable file.
    pub file: PathBuf,
    /// Arguments before those of the caller.
    pub args: Vec<String>,
    /// Variables that the script sets, with their values.
    pub env: Vec<(String, String)>,
}

/// Reads a wrapper script. `tree` is the directory of its programs and libraries. `None` for a
/// script of another form.
#[must_use]
pub fn unwrapped(script: &str, tree: &Path) -> Option<Program> {
    let tree_text = tree.to_str()?;
    let expanded = |word: &str| word.trim_matches('"').replace("$root", tree_text);
    let env = script.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        let is_name = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
        (!name.is_empty() && name.bytes().all(is_name)).then(|| (name.to_owned(), expanded(value)))
    });
    let (_, command) = script.split_once("\nexec ")?;
    let mut words = command
        .split_whitespace()
        .filter(|word| !matches!(*word, "\\" | "\"$@\""));
    let file = PathBuf::from(expanded(words.next()?));
    let args: Vec<String> = words.map(expanded).collect();
    let is_whole = |text: &str| !text.contains(['$', '"', '`']);
    (file.starts_with(tree) && args.iter().all(|arg| is_whole(arg))).then(|| Program {
        file,
        args,
        env: env.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "#!/bin/sh\n# Runs x\nself=$(readlink -f \"$0\")\nroot=${self%/bin/*}/root\n\
        QEMU_MODULE_DIR=$root/usr/lib/qemu\nexport QEMU_MODULE_DIR\nunset LD_LIBRARY_PATH LD_PRELOAD\n\
        exec \"$root/usr/lib64/ld.so\" --inhibit-cache --library-path \"$root/usr/lib\" --argv0 x \\\n    \
        \"$root/usr/bin/x\" -L \"$root/usr/share/qemu\" \"$@\"\n";

    #[test]
    fn wrapper_script_is_parsed() {
        let program = unwrapped(SCRIPT, Path::new("/s/1/root")).expect("a program");
        assert_eq!(program.file, Path::new("/s/1/root/usr/lib64/ld.so"));
        assert_eq!(
            program.args.join(" "),
            "--inhibit-cache --library-path /s/1/root/usr/lib --argv0 x /s/1/root/usr/bin/x -L /s/1/root/usr/share/qemu"
        );
        let env = [(
            "QEMU_MODULE_DIR".to_owned(),
            "/s/1/root/usr/lib/qemu".to_owned(),
        )];
        assert_eq!(program.env, env);
    }

    #[test]
    fn other_script_is_not_parsed() {
        let tree = Path::new("/s/1/root");
        for other in [
            "\x7fELF",
            "#!/bin/sh\nexec /usr/bin/qemu \"$@\"\n",
            "#!/bin/sh\nexec \"$root/x\" $Y\n",
        ] {
            assert_eq!(unwrapped(other, tree), None, "{other}");
        }
    }
}
