//! Checks Arkouda's objects, as shown, by Arkouda's rules. Errors that make an object unreadable are found when it is
//! opened or read; this module finds errors in readable objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::formats::arkouda::encode::grouping;
use crate::formats::arkouda::kind::ArkoudaKind;
use crate::formats::arkouda::marks::{Marks, scalar};
use crate::store::base::invalid;
use crate::store::encode::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::encode::text::windows;
use crate::store::format::{Depth, Inspection};
use crate::tree::name;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::{ErrorKind, Result};
use npyfs_base::npy::dtype::Kind as Element;
use npyfs_hdf5::Attribute;

/// The forms in which an object is shown.
#[derive(Default)]
struct ShownForms {
    file: Option<Arc<dyn VirtualFile>>,
    dir: Option<Arc<dyn Directory>>,
}

/// Objects, by their own names.
struct ShownObjects(BTreeMap<String, ShownForms>);

/// The kind of the object whose member this is.
type Above = Option<ArkoudaKind>;

struct Check {
    sep: u8,
    depth: Depth,
    broken: Vec<String>,
}

/// Returns the violations of Arkouda's rules in and below a group, one line per object. `sep` is the character in place
/// of `#` in the names of the directory.
pub fn broken(dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
    let &Inspection {
        sep,
        changed,
        depth,
    } = inspection;
    let objects = match changed {
        None => ShownObjects::list(dir, sep)?,
        Some(names) => ShownObjects::found(dir, sep, names)?,
    };
    let mut check = Check {
        sep,
        depth,
        broken: Vec::new(),
    };
    for (own, shown) in &objects.0 {
        check.object(own, shown, None)?;
    }
    Ok(check.broken)
}

impl Check {
    fn object(&mut self, path: &str, shown: &ShownForms, above: Above) -> Result<()> {
        let Err(e) = self.check(path, shown, above) else {
            return Ok(());
        };
        match e.kind {
            ErrorKind::Os(libc::EINVAL | libc::EOPNOTSUPP) => {}
            // A file that cannot be read is reported elsewhere.
            _ if self.depth == Depth::Elements => return Ok(()),
            ErrorKind::Damaged | ErrorKind::TooLarge => {}
            _ => return Err(e.about(path)),
        }
        self.broken.push(format!("{path}: {}", e.message));
        Ok(())
    }

    fn check(&mut self, path: &str, shown: &ShownForms, above: Above) -> Result<()> {
        let Some(dir) = &shown.dir else {
            return match &shown.file {
                // A single array cannot conflict with another, and there may be very many. An object that cannot be
                // shown has no size.
                Some(file) if self.depth == Depth::Outline && file.size()? > 0 => Ok(()),
                Some(file) => check_array(file),
                None => Ok(()),
            };
        };
        if let (Depth::Outline, Some(file)) = (self.depth, &shown.file) {
            file.open()?;
        }
        let info = dir.info()?;
        let Some(kind) = info["type"].as_str().and_then(ArkoudaKind::named) else {
            return Ok(());
        };
        let attributes = dir.attributes()?;
        let members = ShownObjects::list(&**dir, self.sep)?;
        if !matches!(
            kind,
            ArkoudaKind::IPv4 | ArkoudaKind::ArrayView | ArkoudaKind::Bigint
        ) {
            for (own, member) in &members.0 {
                let within = (kind != ArkoudaKind::Group).then_some(kind);
                self.object(&format!("{path}/{own}"), member, within)?;
            }
        }
        match kind {
            ArkoudaKind::IPv4 => check_address(&members.array("IPv4")?),
            ArkoudaKind::ArrayView => check_shape(&attributes, &members.array("ArrayView")?),
            ArkoudaKind::Bigint => check_bigint(&attributes, above),
            ArkoudaKind::Strings => self.check_strings(&members),
            ArkoudaKind::SegArray => {
                let is_marked = Marks::from_attributes(&attributes).object_type.is_some();
                if !is_marked && above != Some(ArkoudaKind::DataFrame) {
                    return Err(invalid("no ObjType: Arkouda takes it for Strings"));
                }
                check_starts(&members, members.rows("values", self.sep)?)
            }
            ArkoudaKind::Categorical => self.check_categorical(&members, shown),
            ArkoudaKind::GroupBy => self.check_group_by(&members, &attributes),
            ArkoudaKind::Index | ArkoudaKind::MultiIndex => {
                self.check_index(&members, &attributes, kind)
            }
            ArkoudaKind::DataFrame => self.check_data_frame(&members, &attributes),
            ArkoudaKind::Pdarray
            | ArkoudaKind::Datetime
            | ArkoudaKind::Timedelta
            | ArkoudaKind::Group => Ok(()),
        }
    }

    /// Checks that each string begins exactly where the previous one ends.
    fn check_strings(&self, members: &ShownObjects) -> Result<()> {
        let values = members.array("values")?;
        check_starts(members, values.elements())?;
        if self.depth == Depth::Outline {
            return Ok(());
        }
        let segments = members.integers("segments")?;
        let (mut ends, mut at) = (StringEnds::new(&segments), 0);
        windows(&values, 1, |block| {
            for (byte, place) in block.iter().zip(at..) {
                if *byte == 0 {
                    ends.found(place + 1)?;
                }
            }
            at += block.len() as u64;
            Ok(())
        })?;
        ends.finish()
    }

    fn check_categorical(&self, members: &ShownObjects, shown: &ShownForms) -> Result<()> {
        let codes = members.integers("codes")?;
        let count = members.rows("categories", self.sep)?;
        members.integers("NA_Codes")?;
        // Reading the labels looks each of them up.
        if shown.file.is_none() || self.depth == Depth::Outline {
            codes.each(|number, code| match u64::try_from(code) {
                Ok(code) if code < count => Ok(()),
                _ => Err(invalid(format!(
                    "code {number} is {code}, there are {count} categories"
                ))),
            })?;
        }
        // Arkouda reads both or neither.
        if members.has("permutation") && members.has("segments") {
            let permutation = members.integers("permutation")?;
            let segments = members.integers("segments")?;
            grouping::check(codes.len(), "codes", &permutation, &segments)?;
        }
        Ok(())
    }

    fn check_group_by(&self, members: &ShownObjects, attributes: &[Attribute]) -> Result<()> {
        let rows = self.check_numbered(members, attributes, ArkoudaKind::GroupBy)?;
        let permutation = members.integers("permutation")?;
        let segments = members.integers("segments")?;
        let unique = members.integers("unique_key_idx")?;
        grouping::check(rows, "the keys", &permutation, &segments)?;
        grouping::within("unique_key_idx", &unique, rows)?;
        if segments.len() != unique.len() {
            let (a, b) = (segments.len(), unique.len());
            return Err(invalid(format!("{a} segments and {b} unique keys")));
        }
        Ok(())
    }

    fn check_index(
        &self,
        members: &ShownObjects,
        attributes: &[Attribute],
        kind: ArkoudaKind,
    ) -> Result<()> {
        self.check_numbered(members, attributes, kind).map(drop)
    }

    /// Returns the rows of the numbered members: all must have the same number.
    fn check_numbered(
        &self,
        members: &ShownObjects,
        attributes: &[Attribute],
        kind: ArkoudaKind,
    ) -> Result<u64> {
        let Some(of) = numbered(kind) else {
            return Ok(0);
        };
        let NumberedMembers { prefix, count, .. } = of;
        let names = || members.0.keys().filter(|name| of.number(name).is_some());
        let there = names().count();
        match number(attributes, count) {
            Some(claimed) if usize::try_from(claimed).ok() != Some(there) => {
                return Err(invalid(format!("{count} is {claimed}, there are {there}")));
            }
            None if of.needed => return Err(invalid(format!("no attribute {count}"))),
            _ => {}
        }
        let first_name = format!("{prefix}0");
        let rows = members.rows(&first_name, self.sep)?;
        for name in names() {
            let here = members.rows(name, self.sep)?;
            if here != rows {
                let why = format!("{name} has {here} elements, {first_name} {rows}");
                return Err(invalid(why));
            }
        }
        Ok(rows)
    }

    fn check_data_frame(&self, members: &ShownObjects, attributes: &[Attribute]) -> Result<()> {
        let columns = || members.0.keys().filter(|name| *name != INDEX);
        let there = columns().count();
        if let Some(claimed) = number(attributes, "NumCols")
            && usize::try_from(claimed).ok() != Some(there)
        {
            return Err(invalid(format!("NumCols is {claimed}, there are {there}")));
        }
        let kind = members.array(INDEX)?.kind();
        if !is_index(kind) {
            return Err(invalid("Index must be numbers or strings"));
        }
        let rows = members.rows(INDEX, self.sep)?;
        for name in columns() {
            let here = members.rows(name, self.sep)?;
            if here != rows {
                return Err(invalid(format!("{name} has {here} rows, Index {rows}")));
            }
        }
        Ok(())
    }
}

impl ShownObjects {
    fn list(dir: &dyn Directory, sep: u8) -> Result<Self> {
        let mut members = Self(BTreeMap::new());
        for (shown, node) in dir.list()?.iter() {
            let stem = match &*node {
                Node::Directory(_) => &*shown,
                _ => shown.strip_suffix(b".npy").unwrap_or(&shown),
            };
            members.add(stem, sep, node.into_owned());
        }
        Ok(members)
    }

    /// Returns the objects with these names without suffix.
    fn found(dir: &dyn Directory, sep: u8, names: &BTreeSet<String>) -> Result<Self> {
        let mut members = Self(BTreeMap::new());
        for own in names {
            let stem = &*name::visible_with(own.as_bytes(), "", sep);
            if let Some(node @ (Node::File(_) | Node::Symlink(_))) =
                dir.lookup(&[stem, &b".npy"[..]].concat())?
            {
                members.add(stem, sep, node);
            }
            if let Some(node @ Node::Directory(_)) = dir.lookup(stem)? {
                members.add(stem, sep, node);
            }
        }
        Ok(members)
    }

    fn add(&mut self, stem: &[u8], sep: u8, node: Node) {
        let Ok(own) = String::from_utf8(name::own_name(stem, sep)) else {
            return;
        };
        let member = self.0.entry(own).or_default();
        match node {
            Node::Directory(below) => member.dir = Some(below),
            Node::File(file) => member.file = Some(file),
            Node::Symlink(_) => {}
        }
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn array(&self, name: &str) -> Result<NpyArray> {
        let file = self.0.get(name).and_then(|member| member.file.as_ref());
        let file = file.ok_or_else(|| invalid(format!("no array {name}")))?;
        NpyArray::shown(&file.open()?)
    }

    fn integers(&self, name: &str) -> Result<Integers> {
        Integers::new(name, self.array(name)?)
    }

    /// Returns the number of elements of a member that may be an object itself.
    fn rows(&self, name: &str, sep: u8) -> Result<u64> {
        let Some(member) = self.0.get(name) else {
            return Err(invalid(format!("{name} is missing")));
        };
        if let Some(dir) = &member.dir {
            let below = Self::list(&**dir, sep)?;
            for counted in ["codes", "segments", "Limb_0"] {
                if below.has(counted) {
                    return Ok(below.array(counted)?.elements());
                }
            }
        }
        let shape = self.array(name)?.shape;
        Ok(shape.first().copied().unwrap_or(0))
    }
}

/// Checks an array that Arkouda is to read, which must be marked.
fn check_array(file: &Arc<dyn VirtualFile>) -> Result<()> {
    let content = file.open()?;
    let attributes = file.attributes()?;
    if Marks::from_attributes(&attributes).object_type.is_none() {
        return Ok(());
    }
    let array = NpyArray::shown(&content)?;
    if !is_element(array.kind()) {
        let dtype = array.dtype.name();
        return Err(invalid(format!("Arkouda has no elements of type {dtype}")));
    }
    let is_flat = |a: &Attribute| !matches!(a.name.as_slice(), b"Rank" | b"Shape");
    if !attributes.iter().all(is_flat) {
        return check_shape(&attributes, &array);
    }
    match array.shape.len() {
        1 => Ok(()),
        n => Err(invalid(format!("{n} dimensions, Arkouda reads one"))),
    }
}

fn check_shape(attributes: &[Attribute], array: &NpyArray) -> Result<()> {
    match Marks::from_attributes(attributes).shape {
        Some(shape) if shape == array.shape => Ok(()),
        Some(shape) => {
            let all = array.elements();
            let why = format!("Shape is {shape:?}, there are {all} elements");
            Err(invalid(why))
        }
        None => Err(invalid("Rank and Shape do not say one shape")),
    }
}

fn check_address(array: &NpyArray) -> Result<()> {
    match array.scalar() {
        Some((Element::Uint, 8, _)) if array.shape.len() == 1 => Ok(()),
        _ => {
            let (dtype, shape) = (array.dtype.name(), &array.shape);
            let why = format!("IPv4 is a vector of <u8, this is {dtype} of shape {shape:?}");
            Err(invalid(why))
        }
    }
}

/// An empty part of a SegArray has another form.
fn check_bigint(attributes: &[Attribute], above: Above) -> Result<()> {
    if above == Some(ArkoudaKind::SegArray) || Marks::from_attributes(attributes).is_bigint {
        return Ok(());
    }
    Err(invalid("limbs without the attribute isBigInt"))
}

/// Checks that the first start is 0; their order and bounds are checked when they are opened.
fn check_starts(members: &ShownObjects, values: u64) -> Result<()> {
    let segments = members.integers("segments")?;
    if segments.is_empty() {
        return match values {
            0 => Ok(()),
            n => Err(invalid(format!("{n} values and no segments"))),
        };
    }
    let mut first = [0];
    segments.read(0, &mut first)?;
    match first {
        [0] => Ok(()),
        [start] => Err(invalid(format!("segment 0 is {start}, not 0"))),
    }
}

/// Compares the positions after zero bytes with the stored starts, one window of which is in memory.
struct StringEnds<'a> {
    segments: &'a Integers,
    /// The number of strings so far, and the ends of those in the window.
    met: u64,
    window: Vec<i64>,
    from: u64,
}

impl<'a> StringEnds<'a> {
    const WINDOW: u64 = 1 << 16;

    fn new(segments: &'a Integers) -> Self {
        Self {
            segments,
            met: 0,
            window: Vec::new(),
            from: 0,
        }
    }

    /// Records the end of a string.
    fn found(&mut self, end: u64) -> Result<()> {
        self.met += 1;
        if self.met >= self.segments.len() {
            return Ok(());
        }
        let at = self.met;
        if at >= self.from + self.window.len() as u64 {
            let count = (self.segments.len() - at).min(Self::WINDOW);
            // At most a window.
            self.window.resize(count as usize, 0);
            self.segments.read(at, &mut self.window)?;
            self.from = at;
        }
        let start = self.window.get((at - self.from) as usize).copied();
        match start.map(u64::try_from) {
            Some(Ok(start)) if start == end => Ok(()),
            _ => Err(invalid(format!(
                "segment {at} is {}, string {} ends before {end}",
                start.unwrap_or_default(),
                at - 1
            ))),
        }
    }

    fn finish(self) -> Result<()> {
        let (met, there) = (self.met, self.segments.len());
        if met == there {
            return Ok(());
        }
        Err(invalid(format!(
            "{there} segments, values hold the ends of {met} strings"
        )))
    }
}

/// Returns the integer in an attribute.
fn number(attributes: &[Attribute], name: &str) -> Option<i64> {
    let mut attributes = attributes.iter();
    let attribute = attributes.find(|a| a.name == name.as_bytes())?;
    scalar(attribute.value.as_ref().ok()?)
}

/// The index of a DataFrame.
pub const INDEX: &str = "Index";

/// Numbered members of an object, and the attribute with their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedMembers {
    /// The prefix of the number.
    pub prefix: &'static str,
    /// The name of the attribute.
    pub count: &'static str,
    /// Whether Arkouda needs the attribute to read the object.
    pub needed: bool,
}

/// Returns the numbered members of objects of a kind.
pub fn numbered(kind: ArkoudaKind) -> Option<NumberedMembers> {
    let (prefix, count, needed) = match kind {
        ArkoudaKind::GroupBy => ("KEY_", "NumKeys", true),
        ArkoudaKind::Index | ArkoudaKind::MultiIndex => ("IDX_", "NumIdx", false),
        _ => return None,
    };
    Some(NumberedMembers {
        prefix,
        count,
        needed,
    })
}

impl NumberedMembers {
    /// Returns the number in a name.
    pub fn number(&self, name: &str) -> Option<u32> {
        name.strip_prefix(self.prefix)?.parse().ok()
    }
}

/// Returns whether an array may have such elements: Arkouda reads integers and floats, including times and booleans.
pub fn is_element(kind: Option<Element>) -> bool {
    use Element::{Bool, Datetime, Float, Int, Timedelta, Uint};
    matches!(kind, Some(Bool | Int | Uint | Float | Datetime | Timedelta))
}

/// Returns whether the index of a DataFrame may have such elements: `HDF5Msg.chpl` lines 1911 to 1946.
pub fn is_index(kind: Option<Element>) -> bool {
    use Element::{Bytes, Float, Int, Uint};
    matches!(kind, Some(Int | Uint | Float | Bytes))
}
