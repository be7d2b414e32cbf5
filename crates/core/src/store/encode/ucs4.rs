//! NumPy's text: four bytes a character, with NULs up to the width of its type.

use npyfs_base::npy::dtype::{DType, Order};

/// Returns the codes of the characters of an element, without the NULs at its end.
pub fn characters(element: &[u8], order: Order) -> impl Iterator<Item = u32> {
    let (codes, _) = element.as_chunks::<4>();
    let end = codes.iter().rposition(|code| *code != [0; 4]);
    let codes = codes.iter().take(end.map_or(0, |last| last + 1));
    codes.map(move |code| match order {
        Order::Big => u32::from_be_bytes(*code),
        Order::Little | Order::None => u32::from_le_bytes(*code),
    })
}

/// Returns texts as elements of the narrowest type that holds them all.
pub fn elements<T: AsRef<str>>(texts: &[T]) -> (DType, Vec<u8>) {
    let texts = texts.iter().map(AsRef::as_ref);
    let width = texts.clone().map(|text| text.chars().count()).max();
    let width = width.unwrap_or(0).max(1);
    let padded = texts.flat_map(|text| {
        let letters = text.chars().map(u32::from).chain(std::iter::repeat(0));
        letters.take(width).flat_map(u32::to_le_bytes)
    });
    (DType::text(width), padded.collect())
}
