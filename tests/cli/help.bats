#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What the command says about itself, and how it answers a mistyped line.
load common
kvferry=${KVFERRY:?the command under test}

@test "overview" { matches overview --help; }
@test "help COMMAND is COMMAND --help" {
    "$kvferry" help plan >a
    "$kvferry" plan --help >b
    cmp a b
}
@test "help of layout" { matches help-layout layout --help; }
@test "help of plan" { matches help-plan plan --help; }
@test "help of directory" { matches help-directory directory --help; }
@test "version" {
    run "$kvferry" --version
    [ "$status" -eq 0 ]
    [[ $("$kvferry" -V) == "$output" ]]
    [[ $output =~ ^kvferry\ [0-9]+\.[0-9]+\.[0-9]+\ \(planner\ [0-9]+,\ protocol\ kvferry/1\)$ ]]
}
@test "no command" { matches no-command; }
@test "mistyped command" { matches mistyped-command paln; }
@test "mistyped command, two letters exchanged" { matches mistyped-exchanged laoyut; }
@test "unknown command" { matches unknown-command xylophone; }
@test "option before the command" { matches option-first --tokens 3 plan a b; }
@test "unknown command after help" { matches unknown-help help lyout; }
@test "mistyped option" { matches mistyped-option plan --fragmets a b; }
@test "mistyped option with a value" { matches mistyped-option-value layout --blok-tokens=16; }
@test "unknown option" { matches unknown-option plan --xylophone a b; }
@test "unknown letter" { matches unknown-letter plan -Z a b; }
@test "option without its value" { matches missing-value layout --layers; }
@test "value for an option that takes none" { matches extra-value plan --json=yes a b; }
@test "too many files" { matches too-many-files plan a b c; }
@test "one file only" { matches one-file plan a; }
@test "operand that is not wanted" { matches extra-operand layout --layers 2 file.json; }
@test "hidden options are not suggested" {
    run "$kvferry" prefill --fault-polic x
    [ "$status" -eq 2 ]
    [[ $output != *fault-policy* ]]
}
@test "a full disk is a failure" {
    [ -w /dev/full ] || skip "no /dev/full"
    run bash -c "'$kvferry' --help >/dev/full"
    [ "$status" -eq 1 ]
    [[ $output == *"standard output cannot be written"* ]]
}
