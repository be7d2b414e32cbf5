//! Tests of `parse`.

use super::*;
use crate::npy;
use proptest::collection::vec;
use proptest::prelude::*;

fn with_text(text: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend(text.bytes());
    out
}

fn with_descr(descr: &str) -> Result<DType> {
    let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (3,), }}");
    parse(&with_text(&text)).map(|header| header.dtype)
}

#[test]
fn where_the_payload_begins_stands_in_the_preamble() {
    let text = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}\n";
    let first = with_text(text);
    let mut second = MAGIC.to_vec();
    second.extend([2, 0]);
    second.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    second.extend(text.bytes());
    for file in [first, second] {
        let begin = parse(&file).unwrap().start;
        assert_eq!(start(&file[..PREAMBLE]), Some(begin));
        assert_eq!(start(&file[..MAGIC.len() + 3]), None);
    }
    assert_eq!(start(b"{'descr': '|u1'}"), None);
}

#[test]
fn fortran_order_and_old_spellings_are_read() {
    let text = "{'shape': (5L, 3L), 'fortran_order': True, 'descr': '>f4'}\n";
    let header = parse(&with_text(text)).unwrap();
    assert_eq!(header.shape, [5, 3]);
    assert!(header.fortran_order);
    assert_eq!(header.dtype.name(), ">f4");
    assert_eq!((header.start, header.len), (10 + text.len() as u64, 60));
}

#[test]
fn what_cannot_be_taken_in_is_named() {
    let whole = npy::header(&DType::int(4), &[5]);
    assert_eq!(parse(b"PK\x03\x04"), Err(NpyError::NotNpy));
    assert_eq!(parse(b""), Err(NpyError::NotNpy));
    for end in 1..whole.len() {
        assert_eq!(parse(&whole[..end]), Err(NpyError::HeaderTruncated));
    }
    let mut other = whole.clone();
    other[6] = 4;
    assert_eq!(parse(&other), Err(NpyError::Version(4, 0)));
    other[6] = 2;
    other[8..12].fill(0xff);
    assert_eq!(parse(&other), Err(NpyError::HeaderTooLong));
    other[6] = 3;
    other[8..12].copy_from_slice(&[1, 0, 0, 0]);
    other[12] = 0xff;
    assert_eq!(parse(&other), Err(NpyError::NotText));
    for descr in ["'|O'", "'|O8'", "[('a', '|O')]"] {
        assert_eq!(with_descr(descr), Err(NpyError::Pickled), "{descr}");
    }
    for descr in [
        "'<i3'",
        "'i4'",
        "'|i4'",
        "'<f8[ns]'",
        "'<M8[xx]'",
        "'<x4'",
        "''",
        "[]",
    ] {
        let refused = matches!(with_descr(descr), Err(NpyError::Unsupported(_)));
        assert!(refused, "{descr}");
    }
    for descr in [
        "5",
        "None",
        "{'a': '<i4'}",
        "[5]",
        "[('a',)]",
        "[('a', '<i4'), ('a', '<i4')]",
    ] {
        let refused = matches!(with_descr(descr), Err(NpyError::Syntax(_)));
        assert!(refused, "{descr}");
    }
    let huge = "{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,)}";
    assert_eq!(parse(&with_text(huge)), Err(NpyError::TooLarge));
    for text in [
        "{'shape': (), 'shape': (), 'descr': '<f8', 'fortran_order': False}",
        "{'shape': (-1,), 'descr': '<f8', 'fortran_order': False}",
        "{'shape': (None,), 'descr': '<f8', 'fortran_order': False}",
        "{'shape': (), 'descr': '<f8', 'fortran_order': None}",
    ] {
        let refused = matches!(parse(&with_text(text)), Err(NpyError::Syntax(_)));
        assert!(refused, "{text}");
    }
}

#[test]
fn a_length_that_does_not_fit_is_told() {
    let head = npy::header(&DType::int(4), &[5]);
    let header = parse(&head).unwrap();
    assert_eq!(header.check_len(148), Ok(()));
    let want = 148;
    assert_eq!(
        header.check_len(147),
        Err(NpyError::Truncated { have: 147, want })
    );
    assert_eq!(
        header.check_len(149),
        Err(NpyError::TooLong { have: 149, want })
    );
}

fn any_scalar() -> impl Strategy<Value = DType> {
    let order = prop_oneof![Just(Order::Little), Just(Order::Big)];
    let plain = prop_oneof![
        Just((Kind::Bool, 1)),
        prop::sample::select(vec![1, 2, 4, 8]).prop_map(|n| (Kind::Int, n)),
        prop::sample::select(vec![1, 2, 4, 8]).prop_map(|n| (Kind::Uint, n)),
        prop::sample::select(vec![2, 4, 8, 16]).prop_map(|n| (Kind::Float, n)),
        prop::sample::select(vec![8, 16, 32]).prop_map(|n| (Kind::Complex, n)),
        (1..300_usize).prop_map(|n| (Kind::Bytes, n)),
        (1..300_usize).prop_map(|n| (Kind::Text, n * 4)),
        (1..300_usize).prop_map(|n| (Kind::Void, n)),
    ];
    let unit = prop::sample::select(vec!["", "[ns]", "[Y]", "[25us]"]);
    let kind = prop_oneof![Just(Kind::Datetime), Just(Kind::Timedelta)];
    let time = (kind, order.clone(), unit).prop_map(|(kind, order, unit)| DType::Scalar {
        kind,
        size: 8,
        order,
        unit: unit.into(),
    });
    prop_oneof![
        4 => (plain, order).prop_map(|((kind, size), order)| DType::scalar(kind, size, order)),
        1 => time,
    ]
}

/// Members with gaps before and after them, and with unique names.
fn any_struct(member: impl Strategy<Value = DType>) -> impl Strategy<Value = DType> {
    let shape = vec(1..4_u64, 0..3);
    let member = ("[^0-9\\x00]{0,6}", 0..9_usize, member, shape);
    (vec(member, 1..6), 0..9_usize).prop_map(|(members, tail)| {
        let mut end = 0;
        let mut fields = Vec::new();
        for (i, (name, gap, dtype, shape)) in members.into_iter().enumerate() {
            let name = format!("{name}{i}");
            let offset = end + gap;
            let field = Field {
                name,
                offset,
                dtype,
                shape,
            };
            end = offset + field.size().unwrap();
            fields.push(field);
        }
        DType::Struct {
            fields,
            size: end + tail,
        }
    })
}

fn any_dtype() -> impl Strategy<Value = DType> {
    any_scalar().prop_recursive(3, 24, 5, any_struct)
}

proptest! {
    #[test]
    fn our_own_headers_come_back(dtype in any_dtype(), shape in vec(0..1000_u64, 0..4)) {
        let bytes = npy::header(&dtype, &shape);
        let got = parse(&bytes).unwrap();
        let len = payload_len(&dtype, &shape).unwrap();
        let start = bytes.len() as u64;
        prop_assert_eq!(got, Header { dtype, shape, fortran_order: false, start, len });
    }

    #[test]
    fn no_bytes_panic(mut bytes in vec(any::<u8>(), 0..200), whole in any::<bool>()) {
        if whole {
            let mut file = npy::header(&DType::int(4), &[5]);
            for (at, byte) in bytes.drain(..).enumerate().filter(|(_, b)| b % 16 == 0) {
                if let Some(place) = file.get_mut(10 + at) {
                    *place = byte;
                }
            }
            bytes = file;
        }
        let _ = parse(&bytes);
    }
}
