//! daf: axes, vectors and matrices over axes, and items without one.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/h5fs.py`. Every file has `__daf__` and a copy of each axis that
//! its object uses. What daf's reader takes: native little-endian numbers, booleans as enumerations, ASCII of
//! fixed width, `\x01` for None, rows of sparse matrices sorted and without duplicates.

use xxhash_rust::xxh3::xxh3_128;

use super::array::Array;
use super::{Base, Key, Plan, invalid, plain, single, sparse, text, unsupported};
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::dtype::{DType, Kind};
use crate::error::Result;
use crate::h5::{NewAttribute, NewDataset};

/// The dataset that marks a store.
const MARK: &str = "__daf__";

/// Longest item in bytes: HDF5 keeps attributes in 64 KiB.
const LONGEST_ITEM: u64 = 60_000;

/// What a name means.
#[derive(Debug, PartialEq, Eq)]
enum Meaning<'a> {
    Axis,
    /// One or two axes.
    Property(Vec<&'a str>),
    Item,
    /// daf does not look at it.
    Other,
}

fn meaning(name: &str) -> Meaning<'_> {
    let Some((left, property)) = name.split_once('#') else {
        return Meaning::Item;
    };
    let axes: Vec<&str> = left.split(',').collect();
    if axes.contains(&"") || axes.len() > 2 {
        return Meaning::Other;
    }
    match (property.is_empty(), axes.len()) {
        (true, 1) => Meaning::Axis,
        (true, _) => Meaning::Other,
        (false, _) => Meaning::Property(axes),
    }
}

/// Whether a directory of this name holds the parts of a sparse matrix.
pub fn is_matrix(name: &str) -> bool {
    matches!(meaning(name), Meaning::Property(axes) if axes.len() == 2)
}

pub fn plan(base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Plan> {
    let mut new = NewFile::default();
    let name = key.name();
    match meaning(name) {
        Meaning::Axis => {
            let array = Array::open(base, &single(parts)?.content)?;
            check_axis(base, name, &array)?;
            add_text(&mut new, key.path(), &array);
        }
        Meaning::Property(axes) => {
            let lengths = add_axes(&mut new, base, key, &axes)?;
            if let Ok(part) = single(parts)
                && part.place.suffix != ".npz"
            {
                let array = Array::open(base, &part.content)?;
                check_shape(&array, &lengths)?;
                add(&mut new, key.path(), &array)?;
            } else if let &[rows, columns] = lengths.as_slice() {
                let members = match sparse::members(base, parts)? {
                    Ok(members) => members,
                    Err(missing) => return Ok(Plan::Incomplete(missing)),
                };
                sparse::add(&mut new, base, key, members, (rows, columns))?;
            } else {
                return Err(invalid("a vector is one .npy file"));
            }
        }
        Meaning::Item => {
            let array = Array::open(base, &single(parts)?.content)?;
            if array.shape.len() <= 1 && array.data.len() <= LONGEST_ITEM {
                let item = item(name, &array)?;
                add_mark(&mut new, key, vec![item]);
                return Ok(Plan::Complete(new));
            }
            plain::add(&mut new, key.path(), &array)?;
        }
        Meaning::Other => {
            let array = Array::open(base, &single(parts)?.content)?;
            plain::add(&mut new, key.path(), &array)?;
        }
    }
    add_mark(&mut new, key, Vec::new());
    Ok(Plan::Complete(new))
}

/// Marks the group of an object as a store; items are attributes of the mark.
fn add_mark(new: &mut NewFile, key: &Key, items: Vec<NewAttribute>) {
    let mut mark = NewDataset::new(&key.beside(MARK), DType::int(1), &[2]);
    mark.attributes = items;
    new.add(mark, bytes(vec![1, 0]));
}

/// Entries are text that daf can read, each there once; an axis keeps its length for as long as it is there.
fn check_axis(base: &dyn Base, name: &str, array: &Array) -> Result<()> {
    if array.shape.len() != 1 || !text::is_text(array) {
        let (dtype, shape) = (array.dtype.name(), &array.shape);
        return Err(invalid(format!(
            "an axis is a vector of strings, this is {dtype} of shape {shape:?}"
        )));
    }
    if let Some(old) = base.npy(name)? {
        let old = Array::open(base, &old)?.shape;
        if old != array.shape {
            return Err(invalid(format!(
                "the axis has {old:?} entries, these are {:?}: remove it and its properties first",
                array.shape
            )));
        }
    }
    let mut seen: Vec<u128> = Vec::new();
    text::each(array, |_, entry| {
        seen.push(xxh3_128(entry));
        Ok(())
    })?;
    seen.sort_unstable();
    let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) else {
        return Ok(());
    };
    text::each(array, |number, entry| {
        if xxh3_128(entry) == twice[0] {
            let entry = String::from_utf8_lossy(entry);
            return Err(invalid(format!(
                "the entry {entry:?} (number {number}) is there twice"
            )));
        }
        Ok(())
    })
}

/// Adds a copy of each axis; their lengths.
fn add_axes(new: &mut NewFile, base: &dyn Base, key: &Key, axes: &[&str]) -> Result<Vec<u64>> {
    let mut lengths = Vec::new();
    for (number, axis) in axes.iter().enumerate() {
        let name = format!("{axis}#");
        let missing = || invalid(format!("there is no axis {axis}: write {name}.npy first"));
        let file = base.npy(&name)?.ok_or_else(missing)?;
        let array = Array::open(base, &file).map_err(|e| e.about(&name))?;
        let &[length] = array.shape.as_slice() else {
            return Err(invalid(format!("{name} is no vector")));
        };
        lengths.push(length);
        if !axes[..number].contains(axis) {
            add_text(new, &key.beside(&name), &array);
        }
    }
    Ok(lengths)
}

pub fn check_shape(array: &Array, lengths: &[u64]) -> Result<()> {
    if array.shape == lengths {
        return Ok(());
    }
    let shape = &array.shape;
    Err(invalid(format!(
        "shape {shape:?} does not fit axes of length {lengths:?}"
    )))
}

fn add_text(new: &mut NewFile, path: &[String], array: &Array) {
    let (width, data) = text::ascii(array);
    let mut dataset = NewDataset::new(path, DType::bytes(width), &array.shape);
    text::mark(&mut dataset, array);
    new.add(dataset, data);
}

/// Adds an array of a type that daf has.
fn add(new: &mut NewFile, path: &[String], array: &Array) -> Result<()> {
    if text::is_text(array) {
        add_text(new, path, array);
        return Ok(());
    }
    let array = numbers(array)?;
    new.add(NewDataset::new(path, array.dtype, &array.shape), array.data);
    Ok(())
}

/// `typing/dtypes.py`: booleans, integers, and floats of 16, 32 and 64 bits, little end first; others are turned.
pub fn numbers(array: &Array) -> Result<Array> {
    match array.scalar() {
        Some((Kind::Bool | Kind::Int | Kind::Uint, ..) | (Kind::Float, 2 | 4 | 8, _)) => {
            Ok(array.little())
        }
        _ => {
            let name = array.dtype.name();
            Err(unsupported(format!("daf has no elements of type {name}")))
        }
    }
}

/// A small array as an attribute; text as UTF-8.
fn item(name: &str, array: &Array) -> Result<NewAttribute> {
    if name.is_empty() || name.contains('\0') {
        return Err(unsupported(format!("HDF5 cannot hold the name {name:?}")));
    }
    let len = usize::try_from(array.data.len()).unwrap_or(0);
    let mut data = vec![0; len];
    let dtype;
    if text::is_text(array) {
        let mut texts: Vec<Vec<char>> = Vec::new();
        text::each(array, |_, element| {
            let text =
                std::str::from_utf8(element).map_err(|_| invalid("text that is not UTF-8"))?;
            texts.push(text.chars().collect());
            Ok(())
        })?;
        let width = texts.iter().map(Vec::len).max().unwrap_or(0);
        dtype = DType::text(width);
        data.clear();
        for mut text in texts {
            text.resize(width, '\0');
            data.extend(text.iter().flat_map(|&c| u32::from(c).to_le_bytes()));
        }
    } else {
        let array = numbers(array)?;
        array.data.read_at(0, &mut data)?;
        dtype = array.dtype;
    }
    Ok(NewAttribute::new(name, dtype, &array.shape, data))
}

/// Bytes as content.
pub fn bytes(bytes: Vec<u8>) -> std::sync::Arc<dyn crate::content::Content> {
    std::sync::Arc::new(crate::content::Literal(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::store::{Memory, plan_one, saved};
    use super::*;

    #[test]
    fn names_mean_what_daf_takes_them_for() {
        assert_eq!(meaning("cell#"), Meaning::Axis);
        assert_eq!(meaning("cell#age"), Meaning::Property(vec!["cell"]));
        assert_eq!(
            meaning("cell,gene#a,b#c"),
            Meaning::Property(vec!["cell", "gene"])
        );
        assert_eq!(meaning("title"), Meaning::Item);
        for name in ["a,b,c#x", "#x", "a,#x", "a,b#", ",#"] {
            assert_eq!(meaning(name), Meaning::Other, "{name}");
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_with_its_name() {
        let mut base = Memory::new(super::super::Kind::Daf);
        let s1 = DType::bytes(1);
        base.npy.insert("cell#".into(), saved(&s1, &[3], b"abc"));
        let refused = |key: &str, file: Vec<u8>| {
            let e = match plan_one(&base, key, &file) {
                Ok(_) => panic!("{key} was taken"),
                Err(e) => e,
            };
            assert!(e.message.starts_with(key), "{}", e.message);
            (e.errno(), e.message)
        };
        let complex = DType::scalar(Kind::Complex, 8, crate::dtype::Order::Little);
        let int = DType::int(1);
        for (key, file, errno, why) in [
            (
                "gene#x",
                saved(&int, &[3], b"123"),
                libc::EINVAL,
                "no axis gene",
            ),
            ("cell#x", saved(&int, &[2], b"12"), libc::EINVAL, "[2]"),
            (
                "cell#x",
                saved(&complex, &[3], &[0; 24]),
                libc::EOPNOTSUPP,
                "<c8",
            ),
            (
                "cell#",
                saved(&s1, &[2], b"ab"),
                libc::EINVAL,
                "[3] entries",
            ),
            ("new#", saved(&s1, &[3], b"aba"), libc::EINVAL, "\"a\""),
            (
                "new#",
                saved(&int, &[3], b"123"),
                libc::EINVAL,
                "vector of strings",
            ),
        ] {
            let (number, message) = refused(key, file);
            assert_eq!(number, errno, "{message}");
            assert!(message.contains(why), "{message}");
        }
        let new = plan_one(&base, "cell#x", &saved(&s1, &[3], b"x\x80z")).unwrap();
        let place = new
            .outline
            .datasets
            .iter()
            .position(|d| d.path == ["cell#x"]);
        let read = new.data[place.unwrap()].read_at(0, &mut [0; 3]);
        assert_eq!(read.unwrap_err().errno(), libc::EINVAL);
    }
}
