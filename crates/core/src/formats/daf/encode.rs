//! Writes daf objects: axes, vectors and matrices along axes, and items.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/h5fs.py`. Every file has `__daf__` and a copy of each axis of its object.
//! daf's reader accepts native little-endian numbers, booleans as enumerations, ASCII of fixed width, `\x01` for None,
//! and sparse matrices: groups of CSR parts whose column indices are sorted and unique in each row. Rows are sorted
//! here.

use std::sync::Arc;

use super::NAME;
use super::rules::{
    self, MARK, Meaning, check_entries, check_shape, check_text_vector, meaning, numbers,
};
use crate::formats::sparse::{self, CheckedMatrix, Pointers, SparseMembers, SparseOrder};
use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::array::NpyArray;
use crate::store::encode::contents::SpooledFile;
use crate::store::encode::integers::Integers;
use crate::store::encode::{ObjectKey, Plan, single, text};
use crate::store::object::NewFile;
use crate::store::part::Part;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{NewAttribute, NewDataset};
use npyfs_io::content::{Content, complete_npy_header};

/// The most bytes of an item: the limit for reading an attribute. Text temporarily takes four bytes per character.
const LARGEST_ITEM: u64 = 16 << 20;

pub(crate) fn plan(base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
    let mut new = NewFile::default();
    let name = key.name();
    match meaning(name) {
        Meaning::Axis => {
            let array = NpyArray::open(base, &single(parts)?.content)?;
            check_axis(base, name, &array)?;
            add_text(&mut new, key.path(), &array)?;
        }
        Meaning::Property(axes) => {
            let part = single(parts)
                .ok()
                .filter(|part| part.place.suffix != ".npz");
            if part.is_none() && axes.len() != 2 {
                return Err(invalid("a vector is one .npy file"));
            }
            let lengths = match add_axes(&mut new, base, key, &axes)? {
                Ok(lengths) => lengths,
                Err(missing) => return without_axes(base, parts, part, &axes, missing),
            };
            if let Some(part) = part {
                let array = NpyArray::open(base, &part.content)?;
                check_shape(&array, &lengths)?;
                add(&mut new, key.path(), &array)?;
            } else if let &[rows, columns] = lengths.as_slice() {
                let members = match sparse_members(base, parts)? {
                    Ok(members) => members,
                    Err(missing) => return Ok(Plan::Incomplete(missing)),
                };
                add_sparse(&mut new, base, key, members, (rows, columns))?;
            }
        }
        Meaning::Item => {
            let array = NpyArray::open(base, &single(parts)?.content)?;
            let item = item(name, &array)?;
            add_mark(&mut new, key, vec![item]);
            return Ok(Plan::Complete(new));
        }
        Meaning::Other => {
            return Err(invalid(
                "daf has no object of such a name: an axis is axis#, what lies along one or two axis#property and rows,columns#property, \
                 and an item has no # in its name",
            ));
        }
    }
    add_mark(&mut new, key, Vec::new());
    Ok(Plan::Complete(new))
}

/// Returns the content of an empty store that begins with axes, by name.
pub(crate) fn begin(base: &dyn Base, axes: &[(String, Arc<dyn Content>)]) -> Result<NewFile> {
    let mut new = NewFile::default();
    let mut last = "";
    let mut names: Vec<&str> = axes.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    for name in names {
        if name == std::mem::replace(&mut last, name) {
            return Err(invalid(format!("the axis {name} is there twice")));
        }
    }
    for (name, content) in axes {
        let key = ObjectKey::of_path(&format!("{name}#"))?;
        let about = |e: Error| e.about(key.name());
        if !matches!(meaning(key.name()), Meaning::Axis) || key.path().len() != 1 {
            return Err(about(invalid("daf has no axis of such a name")));
        }
        let array = NpyArray::open(base, content).map_err(about)?;
        check_axis(base, key.name(), &array).map_err(about)?;
        add_text(&mut new, key.path(), &array).map_err(about)?;
    }
    add_mark(&mut new, &ObjectKey::of_path(MARK)?, Vec::new());
    Ok(new)
}

/// Returns a group that is an empty store.
pub(crate) fn begin_group(key: &ObjectKey) -> NewFile {
    let mut new = NewFile::default();
    new.mark(key.path(), Vec::new());
    let mark = NewDataset::new(&key.below(MARK), DType::int(1), &[2]);
    new.add(mark, bytes(vec![1, 0]));
    new
}

/// Marks the group of an object as a store; items are attributes of the mark.
fn add_mark(new: &mut NewFile, key: &ObjectKey, items: Vec<NewAttribute>) {
    let mut mark = NewDataset::new(&key.beside(MARK), DType::int(1), &[2]);
    mark.attributes = items;
    new.add(mark, bytes(vec![1, 0]));
}

/// Checks that entries are unique text that daf can read, and that an existing axis keeps its length.
fn check_axis(base: &dyn Base, name: &str, array: &NpyArray) -> Result<()> {
    check_text_vector(array)?;
    if let Some(old) = base.npy(name)? {
        let old = NpyArray::open(base, &old)?.shape;
        if old != array.shape {
            return Err(invalid(format!(
                "the axis has {old:?} entries, these are {:?}: remove it and its properties first",
                array.shape
            )));
        }
    }
    check_entries(array)
}

/// Returns the axes that an object waits for. Checks that need no axes are made now.
fn without_axes(
    base: &dyn Base,
    parts: &[Part],
    file: Option<&Part>,
    axes: &[&str],
    mut missing: Vec<String>,
) -> Result<Plan> {
    match file {
        Some(file) => {
            let header = complete_npy_header(&*file.content)?;
            let rank = header.shape.len();
            if rank != axes.len() {
                let shape = header.shape;
                return Err(invalid(format!(
                    "shape {shape:?} does not fit {} axes",
                    axes.len()
                )));
            }
            let kind = NpyArray {
                dtype: header.dtype,
                shape: header.shape,
                data: file.content.clone(),
            };
            if !text::is_text(&kind) {
                numbers(&kind)?;
            }
        }
        None => missing.extend(sparse_members(base, parts)?.err().into_iter().flatten()),
    }
    Ok(Plan::Incomplete(missing))
}

/// Adds a copy of each axis. Returns their lengths, or the names of missing axes.
fn add_axes(
    new: &mut NewFile,
    base: &dyn Base,
    key: &ObjectKey,
    axes: &[&str],
) -> Result<std::result::Result<Vec<u64>, Vec<String>>> {
    let (mut lengths, mut missing) = (Vec::new(), Vec::new());
    for (number, axis) in axes.iter().enumerate() {
        let name = format!("{axis}#");
        let first = !axes[..number].contains(axis);
        let Some(file) = base.npy(&name)? else {
            missing.extend(first.then_some(name));
            continue;
        };
        let array = NpyArray::open(base, &file).map_err(|e| e.about(&name))?;
        let &[length] = array.shape.as_slice() else {
            return Err(invalid(format!("{name} is no vector")));
        };
        lengths.push(length);
        if first {
            add_text(new, &key.beside(&name), &array)?;
        }
    }
    Ok(if missing.is_empty() {
        Ok(lengths)
    } else {
        Err(missing)
    })
}

fn add_text(new: &mut NewFile, path: &[String], array: &NpyArray) -> Result<()> {
    let (width, data) = text::ascii(array, NAME)?;
    let mut dataset = NewDataset::new(path, DType::bytes(width), &array.shape);
    text::mark(&mut dataset, array);
    new.add(dataset, data);
    Ok(())
}

/// Adds an array of a type that daf supports.
fn add(new: &mut NewFile, path: &[String], array: &NpyArray) -> Result<()> {
    if text::is_text(array) {
        return add_text(new, path, array);
    }
    let array = numbers(array)?;
    new.add(NewDataset::new(path, array.dtype, &array.shape), array.data);
    Ok(())
}

/// Returns a small array as an attribute; text as UTF-8.
fn item(name: &str, array: &NpyArray) -> Result<NewAttribute> {
    if name.is_empty() || name.contains('\0') {
        return Err(unsupported(format!("HDF5 cannot hold the name {name:?}")));
    }
    if name == MARK || rules::is_note(name.as_bytes()) {
        return Err(invalid(
            "no item can have this name: daf or npyfs use it themselves",
        ));
    }
    if array.data.len() > LARGEST_ITEM {
        let bytes = array.data.len();
        return Err(unsupported(format!(
            "an item may have {LARGEST_ITEM} bytes, this has {bytes}: give it an axis and call it axis#property"
        )));
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
fn bytes(bytes: Vec<u8>) -> Arc<dyn Content> {
    std::sync::Arc::new(npyfs_io::content::InMemory(bytes))
}

/// Finds the members, or returns the names of the missing ones.
fn sparse_members(
    base: &dyn Base,
    parts: &[Part],
) -> Result<std::result::Result<SparseMembers, Vec<String>>> {
    let found = sparse::members(base, parts)?;
    if let Ok(sparse_members) = &found
        && sparse_members.order == Some(SparseOrder::Csc)
    {
        return Err(invalid("a sparse matrix that is not CSR: use tocsr()"));
    }
    Ok(found)
}

/// Checks the members of a matrix against each other and its axes.
pub(crate) fn check_sparse(arrays: [NpyArray; 4], lengths: (u64, u64)) -> Result<CheckedMatrix> {
    sparse::check(arrays, SparseOrder::Csr, lengths, numbers)
}

/// Adds a matrix over two axes.
fn add_sparse(
    new: &mut NewFile,
    base: &dyn Base,
    key: &ObjectKey,
    members: SparseMembers,
    (rows, columns): (u64, u64),
) -> Result<()> {
    let CheckedMatrix {
        data,
        indices,
        indptr,
        sorted,
    } = check_sparse(members.arrays, (rows, columns))?;
    let values = data.elements();
    let narrow = DType::int(4);
    let (dtype, data, indices) = if sorted && indices.is(&narrow) {
        (narrow.clone(), data.clone(), indices.data().clone())
    } else if sorted {
        (DType::int(8), data.clone(), indices.wide())
    } else {
        let (values, indices) = sort_rows(base, &indptr, &indices, &data, columns)?;
        let data = NpyArray {
            data: values,
            ..data
        };
        (DType::int(8), data, indices)
    };
    let mut put = |name: &str, dtype: &DType, len: u64, content| {
        new.add(
            NewDataset::new(&key.below(name), dtype.clone(), &[len]),
            content,
        );
    };
    put("data", &data.dtype, values, data.data.clone());
    put("indices", &dtype, values, indices);
    if indptr.is(&narrow) {
        put("indptr", &narrow, indptr.len(), indptr.data().clone());
    } else {
        put("indptr", &DType::int(8), indptr.len(), indptr.wide());
    }
    let dims = [rows, columns].map(u64::to_le_bytes).concat();
    let shape = NewAttribute::new("shape", DType::int(8), &[2], dims);
    new.mark(key.path(), vec![shape]);
    Ok(())
}

/// Sorts the values and 64-bit column indices of every row. Needs memory for the longest row.
fn sort_rows(
    base: &dyn Base,
    indptr: &Integers,
    indices: &Integers,
    data: &NpyArray,
    columns: u64,
) -> Result<(Arc<dyn Content>, Arc<dyn Content>)> {
    let size = data.dtype.size();
    let (mut values, mut sorted) = (SpooledFile::new(base), SpooledFile::new(base));
    let mut pointers = Pointers::new(indptr);
    let mut start = pointers.next()?;
    for row in 0..indptr.len().saturating_sub(1) {
        let end = pointers.next()?;
        let len = end.saturating_sub(start);
        let twice = || {
            invalid(format!(
                "row {row} has a column twice: use sum_duplicates()"
            ))
        };
        if len > columns {
            return Err(twice());
        }
        let len = usize::try_from(len).map_err(|_| twice())?;
        let mut columns = vec![0; len];
        indices.read(start, &mut columns)?;
        let mut old = vec![0; len.saturating_mul(size)];
        data.data
            .read_at(start.saturating_mul(size as u64), &mut old)?;
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_unstable_by_key(|&i| columns.get(i));
        let mut before = -1;
        for i in order {
            let column = columns.get(i).copied().unwrap_or(-1);
            if column == before {
                return Err(twice());
            }
            before = column;
            sorted.push(&column.to_le_bytes())?;
            values.push(old.get(i * size..(i + 1) * size).unwrap_or_default())?;
        }
        start = end;
    }
    Ok((values.finish()?, sorted.finish()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::daf::Daf;
    use crate::store::encode::store::{MemoryBase, part, saved};
    use crate::store::format;
    use npyfs_base::npy::dtype::{Kind, Order};
    use npyfs_io::content::InMemory;

    /// Returns the plan for a single `.npy` file.
    fn plan_one(base: &MemoryBase, key: &str, file: &[u8]) -> Result<NewFile> {
        let part = part("", ".npy", std::sync::Arc::new(InMemory(file.to_vec())));
        match format::plan(&Daf, base, &ObjectKey::of_path(key)?, &[part])? {
            Plan::Complete(new) => Ok(new),
            Plan::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_with_its_name() {
        let mut base = MemoryBase::default();
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
        let complex = DType::scalar(Kind::Complex, 8, Order::Little);
        let int = DType::int(1);
        for (key, file, errno, why) in [
            (
                "gene#x",
                saved(&int, &[3, 1], b"123"),
                libc::EINVAL,
                "[3, 1]",
            ),
            (
                "a,b,c#x",
                saved(&int, &[1], b"1"),
                libc::EINVAL,
                "no object",
            ),
            (
                "__daf__",
                saved(&int, &[1], b"1"),
                libc::EINVAL,
                "this name",
            ),
            (
                "npyfs_time",
                saved(&int, &[1], b"1"),
                libc::EINVAL,
                "this name",
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
