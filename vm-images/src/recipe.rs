//! Recipes of images, in TOML. Their reference is `docs/images.md`.

use std::path::{Path, PathBuf};

mod fields;
mod model;
mod parse;
mod problem;
mod rules;
mod users;

pub(crate) use model::RoleRecipe;
pub use model::{
    BinaryRecipe, DebianRecipe, GuestRecipe, KernelRecipe, PortRecipe, PostgresRecipe, Recipe,
    RecipeContent, RuntimeRecipe, ServiceRecipe, SuiteRecipe, UserRecipe,
};
pub use problem::Problem;
pub(crate) use rules::is_image_name;

/// Texts of the built-in recipes.
const BUILTIN: &[&str] = &[
    include_str!("../recipes/postgres-15.toml"),
    include_str!("../recipes/minimal.toml"),
    include_str!("../recipes/qemu.toml"),
];

/// Why a recipe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The name is neither a built-in recipe nor a file.
    #[error("{name:?} is neither a builtin recipe ({}) nor a file: name one of them", builtin.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of the built-in recipes.
        builtin: Vec<String>,
    },
    /// The file cannot be read.
    #[error("cannot read the recipe {}", path.display())]
    Read {
        /// Path of the recipe's file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The recipe is too long.
    #[error(
        "the recipe {origin} has {bytes} bytes, the limit is {RECIPE_BYTES}: this is not a recipe"
    )]
    TooLarge {
        /// File or name of a built-in recipe.
        origin: String,
        /// Length of the recipe's text, above the limit of 256 KiB.
        bytes: usize,
    },
    /// The recipe is not TOML.
    #[error("the recipe {origin} is not TOML: {detail}")]
    Syntax {
        /// File or name of a built-in recipe.
        origin: String,
        /// Message of the parser, with line and column.
        detail: String,
    },
    /// Fields of the recipe are invalid.
    #[error("the recipe {origin} has {} problem(s): {}", problems.len(), list(problems))]
    Invalid {
        /// File or name of a built-in recipe.
        origin: String,
        /// Every problem, in the order of the recipe's sections.
        problems: Vec<Problem>,
    },
}

fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Longest accepted recipe in bytes: a hundred times the longest known one.
const RECIPE_BYTES: usize = 1 << 18;

impl Recipe {
    /// Loads a built-in recipe by its image name (`bellows/postgres:15`), else a file.
    ///
    /// # Errors
    ///
    /// [`RecipeError`], with every problem of the recipe.
    pub fn load(name_or_path: &str) -> Result<Self, RecipeError> {
        if let Some(text) = builtin_text(name_or_path) {
            return Self::parse(name_or_path, text);
        }
        let path = Path::new(name_or_path);
        if !path.exists() {
            let builtin = builtin_recipes().into_iter().map(|r| r.name).collect();
            return Err(RecipeError::Unknown {
                name: name_or_path.to_owned(),
                builtin,
            });
        }
        let bytes = std::fs::read(path).map_err(|source| RecipeError::Read {
            path: path.to_owned(),
            source,
        })?;
        if bytes.len() > RECIPE_BYTES {
            let origin = name_or_path.to_owned();
            return Err(RecipeError::TooLarge {
                origin,
                bytes: bytes.len(),
            });
        }
        Self::parse(name_or_path, &String::from_utf8_lossy(&bytes))
    }

    /// Parses a recipe. `origin` names it in errors.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Syntax`] or [`RecipeError::Invalid`].
    pub fn parse(origin: &str, text: &str) -> Result<Self, RecipeError> {
        let table = text
            .parse::<toml::Table>()
            .map_err(|error| RecipeError::Syntax {
                origin: origin.to_owned(),
                detail: error.to_string().trim().replace('\n', " "),
            })?;
        parse::recipe(table, crate::digest::of_bytes(text.as_bytes())).map_err(|problems| {
            RecipeError::Invalid {
                origin: origin.to_owned(),
                problems,
            }
        })
    }
}

/// The built-in recipes.
///
/// # Panics
///
/// Never: a test parses every one of them.
#[must_use]
pub fn builtin_recipes() -> Vec<Recipe> {
    let parse = |text: &&str| Recipe::parse("builtin", text).expect("builtin recipes are tested");
    BUILTIN.iter().map(parse).collect()
}

fn builtin_text(name: &str) -> Option<&'static str> {
    let recipes = builtin_recipes();
    let place = recipes.iter().position(|recipe| recipe.name == name)?;
    BUILTIN.get(place).copied()
}

#[cfg(test)]
mod tests;
