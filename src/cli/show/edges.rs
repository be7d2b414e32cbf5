//! The ends of an array as NumPy prints them with a threshold of 100 elements, which fits on a screen: of a long axis
//! the first three entries, dots and the last three.
//!
//! Only the elements that are printed are read.

use std::ops::Range;

use super::printed::{Form, Surroundings};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::DType;
use npyfs_base::npy::parse::Header;
use npyfs_io::content::Content;

/// Arrays of more elements are printed by their ends.
const THRESHOLD: u64 = 100;

/// Entries of an axis that are printed at each end: fewer of an array with so many axes that there would be too many.
const MOST_AT_EDGE: u64 = 3;

/// Elements that are printed at most.
const MOST_PRINTED: u64 = 10_000;

/// Bytes that are read to be printed.
const BUDGET: usize = 4 << 20;

/// Bytes of a text that are printed in any case.
const LEAST_TEXT: usize = 256;

/// The width of a line.
const LINE: usize = 75;

/// The entries of each axis that are printed.
struct Plan {
    shape: Vec<u64>,
    /// Entries at each end of a long axis; `None`: all are printed.
    edge: Option<u64>,
    /// How far entries of each axis lie from each other, in elements.
    strides: Vec<u64>,
}

/// Returns how far entries of each axis lie from each other, in elements.
fn strides(header: &Header) -> Vec<u64> {
    let steps = |axes: &mut dyn Iterator<Item = u64>| {
        let step = |next: &mut u64, len: u64| {
            let own = *next;
            *next = own.saturating_mul(len);
            Some(own)
        };
        axes.scan(1, step).collect::<Vec<u64>>()
    };
    let shape = header.shape.iter().copied();
    match header.fortran_order {
        true => steps(&mut { shape }),
        false => {
            let mut steps = steps(&mut shape.rev());
            steps.reverse();
            steps
        }
    }
}

impl Plan {
    /// Selects the elements of an array that are printed; `None` if they are too many.
    fn new(header: &Header) -> Option<Self> {
        let shape = &header.shape;
        let count = shape.iter().fold(1_u64, |n, &dim| n.saturating_mul(dim));
        let plan = |edge| Self {
            shape: shape.clone(),
            edge,
            strides: strides(header),
        };
        if count <= THRESHOLD {
            return Some(plan(None));
        }
        let edges = (1..=MOST_AT_EDGE).rev().map(|edge| plan(Some(edge)));
        edges
            .into_iter()
            .find(|plan| plan.printed() <= MOST_PRINTED)
    }

    /// Returns whether entries of an axis of this length are left out.
    fn is_cut(&self, len: u64) -> Option<u64> {
        self.edge.filter(|edge| len > 2 * edge)
    }

    /// Returns the entries of an axis that are printed.
    fn entries(&self, len: u64) -> impl Iterator<Item = u64> + use<> {
        let (first, last) = match self.is_cut(len) {
            Some(edge) => (0..edge, len - edge..len),
            None => (0..len, len..len),
        };
        first.chain(last)
    }

    fn printed(&self) -> u64 {
        let of = |&len: &u64| self.is_cut(len).map_or(len, |edge| 2 * edge);
        self.shape.iter().map(of).fold(1, u64::saturating_mul)
    }

    /// Returns the places in the file of the elements that are printed, in the order in which they are.
    fn places(&self) -> Vec<u64> {
        let axes = self.shape.iter().zip(&self.strides);
        axes.fold(vec![0], |places, (&len, &stride)| {
            let inner = |&first: &u64| {
                self.entries(len)
                    .map(move |at| first.saturating_add(at.saturating_mul(stride)))
            };
            places.iter().flat_map(inner).collect()
        })
    }
}

/// Joins places that follow each other.
fn runs(places: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &place in places {
        match runs.last_mut() {
            Some(run) if run.end == place => run.end += 1,
            _ => runs.push(place..place + 1),
        }
    }
    runs
}

/// Prints an array as `print(array)` in Python, or why it is not printed.
pub(super) fn print(content: &dyn Content, header: &Header) -> Result<String> {
    if header.shape.contains(&0) {
        return Ok("[]".to_owned());
    }
    let Some(plan) = Plan::new(header) else {
        return Ok(format!("({} axes: not printed)", header.shape.len()));
    };
    let places = plan.places();
    let size = header.dtype.size();
    let room = BUDGET / places.len().max(1);
    let taken = match header.dtype {
        DType::Struct { .. } if size > room => {
            return Ok(format!("(elements of {size} bytes: not printed)"));
        }
        DType::Struct { .. } => size,
        // Whole characters.
        DType::Scalar { .. } => size.min(room.max(LEAST_TEXT) / 4 * 4),
    };
    let data = read(content, header, &places, taken)?;
    let elements: Vec<&[u8]> = match taken {
        0 => vec![&[] as &[u8]; places.len()],
        taken => data.chunks_exact(taken).collect(),
    };
    let around = match header.shape.is_empty() {
        true => Surroundings::Nothing,
        false => Surroundings::Array,
    };
    let form = Form::new(&header.dtype, &elements, around);
    let mut words = elements.iter().map(|bytes| form.print(bytes));
    Ok(match header.shape.is_empty() {
        true => words.next().unwrap_or_default(),
        false => Lines { plan: &plan, words }.axis(&header.shape, 1, LINE),
    })
}

/// Reads the first `taken` bytes of the elements at these places.
fn read(content: &dyn Content, header: &Header, places: &[u64], taken: usize) -> Result<Vec<u8>> {
    let size = header.dtype.size() as u64;
    let mut data = Vec::with_capacity(places.len().saturating_mul(taken));
    let mut add = |place: u64, bytes: usize| {
        let start = data.len();
        data.resize(start + bytes, 0);
        let offset = header.start.saturating_add(place.saturating_mul(size));
        content.read_at(offset, &mut data[start..])
    };
    if taken as u64 == size {
        for run in runs(places) {
            add(run.start, (run.end - run.start) as usize * taken)?;
        }
    } else {
        for &place in places {
            add(place, taken)?;
        }
    }
    Ok(data)
}

/// The printed elements on their way into lines.
struct Lines<'a, W> {
    plan: &'a Plan,
    /// The elements that are left, in order.
    words: W,
}

/// An entry of an axis, or the dots for those that are left out.
enum Item {
    Entry,
    Dots,
}

impl<W: Iterator<Item = String>> Lines<'_, W> {
    fn items(&self, len: u64) -> Vec<Item> {
        let entries = |n: u64| (0..n).map(|_| Item::Entry);
        match self.plan.is_cut(len) {
            Some(edge) => {
                let dots = std::iter::once(Item::Dots);
                entries(edge).chain(dots).chain(entries(edge)).collect()
            }
            None => entries(len).collect(),
        }
    }

    /// Returns the text of the entries of the first axis; lines but the first begin with `indent` blanks, and all end
    /// before column `width`.
    fn axis(&mut self, shape: &[u64], indent: usize, width: usize) -> String {
        let [len, inner @ ..] = shape else {
            return self.words.next().unwrap_or_default();
        };
        let items = self.items(*len);
        match inner {
            [] => self.row(items, indent, width.saturating_sub(1)),
            _ => self.block(items, inner, indent, width),
        }
    }

    /// Returns entries of the last axis, as many on each line as there is room for.
    fn row(&mut self, items: Vec<Item>, indent: usize, width: usize) -> String {
        let (mut text, mut line) = (String::new(), String::new());
        let mut used = indent;
        for item in items {
            let word = match item {
                Item::Entry => self.words.next().unwrap_or_default(),
                Item::Dots => "...".to_owned(),
            };
            let long = word.chars().count();
            if used + long > width && used > indent {
                text.push_str(line.trim_end());
                text.push('\n');
                line = " ".repeat(indent);
                used = indent;
            }
            line.push_str(&word);
            line.push(' ');
            used += long + 1;
        }
        line.pop();
        format!("[{text}{line}]")
    }

    /// Returns entries of an axis that others follow, each on lines of its own.
    fn block(&mut self, items: Vec<Item>, inner: &[u64], indent: usize, width: usize) -> String {
        let texts: Vec<String> = items
            .into_iter()
            .map(|item| match item {
                Item::Entry => self.axis(inner, indent + 1, width.saturating_sub(1)),
                Item::Dots => "...".to_owned(),
            })
            .collect();
        let between = format!("{}{}", "\n".repeat(inner.len()), " ".repeat(indent));
        format!("[{}]", texts.join(&between))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy::{fortran_header, header, parse::parse};
    use npyfs_io::content::InMemory;

    fn printed(dtype: &DType, shape: &[u64], payload: &[u8]) -> String {
        let file = [header(dtype, shape), payload.to_vec()].concat();
        let header = parse(&file).unwrap();
        print(&InMemory(file), &header).unwrap()
    }

    fn count(shape: &[u64]) -> String {
        let count = shape.iter().product::<u64>() as i32;
        let payload: Vec<u8> = (0..count).flat_map(i32::to_le_bytes).collect();
        printed(&DType::int(4), shape, &payload)
    }

    #[test]
    fn short_and_long_axes() {
        assert_eq!(count(&[]), "0");
        assert_eq!(count(&[0]), "[]");
        assert_eq!(count(&[3]), "[0 1 2]");
        assert_eq!(count(&[2, 2]), "[[0 1]\n [2 3]]");
        assert_eq!(count(&[2, 1, 2]), "[[[0 1]]\n\n [[2 3]]]");
        assert_eq!(count(&[2000]), "[   0    1    2 ... 1997 1998 1999]");
        assert_eq!(
            count(&[500, 4]),
            "[[   0    1    2    3]\n [   4    5    6    7]\n [   8    9   10   11]\n ...\n \
             [1988 1989 1990 1991]\n [1992 1993 1994 1995]\n [1996 1997 1998 1999]]"
        );
    }

    #[test]
    fn fortran_order_is_printed_as_it_is_meant() {
        let shown = |shape: &[u64], of: fn(u64, u64) -> u64| {
            let (rows, columns) = (shape[0], shape[1]);
            let all = (0..columns).flat_map(|column| (0..rows).map(move |row| of(row, column)));
            let payload: Vec<u8> = all.flat_map(|n| (n as i32).to_le_bytes()).collect();
            let file = [fortran_header(&DType::int(4), shape), payload].concat();
            let header = parse(&file).unwrap();
            assert!(header.fortran_order);
            print(&InMemory(file), &header).unwrap()
        };
        assert_eq!(
            shown(&[2, 3], |row, column| 3 * row + column),
            "[[0 1 2]\n [3 4 5]]"
        );
        assert_eq!(
            shown(&[500, 4], |row, column| 4 * row + column),
            count(&[500, 4])
        );
    }

    #[test]
    fn lines_break_where_numpys_do() {
        let lines = count(&[100]);
        assert_eq!(lines.lines().count(), 5);
        assert!(
            lines
                .lines()
                .all(|line| line.len() <= 75 && line.trim_end() == line)
        );
        assert!(lines.ends_with("96 97 98 99]") && lines.contains("\n 24 25"));
    }

    #[test]
    fn many_axes_are_bounded() {
        let plan = |shape: &[u64]| {
            let file = header(&DType::int(1), shape);
            let plan = Plan::new(&parse(&file).unwrap());
            plan.map(|plan| (plan.edge, plan.printed()))
        };
        assert_eq!(plan(&[10; 2]), Some((None, 100)));
        assert_eq!(plan(&[10; 5]), Some((Some(3), 7776)));
        assert_eq!(plan(&[10; 7]), Some((Some(1), 128)));
        assert_eq!(plan(&[u64::MAX >> 2]), Some((Some(3), 6)));
        assert_eq!(plan(&[7; 20]), None);
        assert_eq!(plan(&[2; 30]), None);
    }

    #[test]
    fn only_the_beginning_of_very_long_text_is_read() {
        let width = BUDGET + 10;
        let text = printed(&DType::bytes(width), &[1], &vec![b'a'; width]);
        assert!(text.len() < BUDGET + 20 && text.ends_with("a'...]"));
    }
}
