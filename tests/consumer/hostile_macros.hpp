// SPDX-License-Identifier: MIT
// Names that other headers define as macros, defined as something that no compiler takes. Eigen and the standard
// library

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <complex>
#include <concepts>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <immintrin.h>
#include <initializer_list>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numbers>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <ranges>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <Eigen/Dense>

// complex.h
#undef I
#define I @
#undef complex
#define complex @
#undef imaginary
#define imaginary @

// X11
#undef None
#define None @
#undef Status
#define Status @
#undef Success
#define Success @
#undef Bool
#define Bool @
#undef True
#define True @
#undef False
#define False @
#undef Always
#define Always @
#undef Never
#define Never @
#undef Convex
#define Convex @
#undef Complex
#define Complex @
#undef Nonconvex
#define Nonconvex @
#undef Above
#define Above @
#undef Below
#define Below @
#undef Opposite
#define Opposite @
#undef Button1
#define Button1 @
#undef KeyPress
#define KeyPress @
#undef KeyRelease
#define KeyRelease @
#undef FocusIn
#define FocusIn @
#undef FocusOut
#define FocusOut @
#undef FontChange
#define FontChange @
#undef Expose
#define Expose @
#undef CursorShape
#define CursorShape @
#undef Unsorted
#define Unsorted @
#undef YSorted
#define YSorted @
#undef GrayScale
#define GrayScale @
#undef StaticGray
#define StaticGray @
#undef TrueColor
#define TrueColor @
#undef PseudoColor
#define PseudoColor @
#undef DirectColor
#define DirectColor @
#undef ControlMask
#define ControlMask @
#undef ShiftMask
#define ShiftMask @
#undef LockMask
#define LockMask @
#undef AnyKey
#define AnyKey @
#undef AnyModifier
#define AnyModifier @
#undef InputOnly
#define InputOnly @
#undef InputOutput
#define InputOutput @
#undef CopyFromParent
#define CopyFromParent @
#undef ParentRelative
#define ParentRelative @
#undef NoSymbol
#define NoSymbol @
#undef Absolute
#define Absolute @
#undef DestroyAll
#define DestroyAll @
#undef RetainTemporary
#define RetainTemporary @
#undef AllTemporary
#define AllTemporary @
#undef BadMatch
#define BadMatch @
#undef BadValue
#define BadValue @
#undef BadName
#define BadName @
#undef CurrentTime
#define CurrentTime @

// windows.h
#undef near
#define near @
#undef far
#define far @
#undef small
#define small @
#undef hyper
#define hyper @
#undef interface
#define interface @
#undef pascal
#define pascal @
#undef cdecl
#define cdecl @
#undef IN
#define IN @
#undef OUT
#define OUT @
#undef OPTIONAL
#define OPTIONAL @
#undef CONST
#define CONST @
#undef VOID
#define VOID @
#undef FAR
#define FAR @
#undef NEAR
#define NEAR @
#undef ERROR
#define ERROR @
#undef NO_ERROR
#define NO_ERROR @
#undef STRICT
#define STRICT @
#undef TRUE
#define TRUE @
#undef FALSE
#define FALSE @
#undef DELETE
#define DELETE @
#undef THIS
#define THIS @
#undef INFINITE
#define INFINITE @
#undef ABSOLUTE
#define ABSOLUTE @
#undef RELATIVE
#define RELATIVE @
#undef TRANSPARENT
#define TRANSPARENT @
#undef OPAQUE
#define OPAQUE @
#undef DIFFERENCE
#define DIFFERENCE @
#undef DOMAIN
#define DOMAIN @
#undef OVERFLOW
#define OVERFLOW @
#undef UNDERFLOW
#define UNDERFLOW @
#undef SING
#define SING @
#undef TLOSS
#define TLOSS @
#undef PLOSS
#define PLOSS @
#undef HUGE
#define HUGE @
#undef CALLBACK
#define CALLBACK @
#undef WINAPI
#define WINAPI @
#undef APIENTRY
#define APIENTRY @
#undef RGB
#define RGB(...) @
#undef GetRValue
#define GetRValue(...) @
#undef MAKEWORD
#define MAKEWORD(...) @
#undef LOWORD
#define LOWORD(...) @
#undef HIWORD
#define HIWORD(...) @
#undef ZeroMemory
#define ZeroMemory(...) @
#undef CopyMemory
#define CopyMemory(...) @
#undef MoveMemory
#define MoveMemory(...) @
#undef FillMemory
#define FillMemory(...) @

// windows.h, for the wide or the narrow function of the name
#undef GetObject
#define GetObject @
#undef GetMessage
#define GetMessage @
#undef SendMessage
#define SendMessage @
#undef CreateWindow
#define CreateWindow @
#undef LoadString
#define LoadString @
#undef LoadImage
#define LoadImage @
#undef LoadIcon
#define LoadIcon @
#undef DrawText
#define DrawText @
#undef CreateFile
#define CreateFile @
#undef DeleteFile
#define DeleteFile @
#undef MoveFile
#define MoveFile @
#undef CopyFile
#define CopyFile @
#undef ReplaceFile
#define ReplaceFile @
#undef FindText
#define FindText @
#undef GetClassName
#define GetClassName @
#undef GetCommandLine
#define GetCommandLine @
#undef GetUserName
#define GetUserName @
#undef GetCurrentTime
#define GetCurrentTime @
#undef StartService
#define StartService @
#undef CreateMutex
#define CreateMutex @
#undef CreateEvent
#define CreateEvent @
#undef CreateDirectory
#define CreateDirectory @
#undef RemoveDirectory
#define RemoveDirectory @

// Arduino and newlib
#undef PI
#define PI @
#undef HALF_PI
#define HALF_PI @
#undef TWO_PI
#define TWO_PI @
#undef DEG_TO_RAD
#define DEG_TO_RAD @
#undef HIGH
#define HIGH @
#undef LOW
#define LOW @
#undef INPUT
#define INPUT @
#undef OUTPUT
#define OUTPUT @
#undef INPUT_PULLUP
#define INPUT_PULLUP @
#undef DEFAULT
#define DEFAULT @
#undef EXTERNAL
#define EXTERNAL @
#undef INTERNAL
#define INTERNAL @
#undef CHANGE
#define CHANGE @
#undef RISING
#define RISING @
#undef FALLING
#define FALLING @
#undef LSBFIRST
#define LSBFIRST @
#undef MSBFIRST
#define MSBFIRST @
#undef SERIAL
#define SERIAL @
#undef DISPLAY
#define DISPLAY @
#undef DEC
#define DEC @
#undef HEX
#define HEX @
#undef OCT
#define OCT @
#undef BIN
#define BIN @
#undef B0
#define B0 @
#undef B1
#define B1 @
#undef B00
#define B00 @
#undef B01
#define B01 @
#undef B10
#define B10 @
#undef B11
#define B11 @
#undef A0
#define A0 @
#undef A1
#define A1 @
#undef A2
#define A2 @
#undef A3
#define A3 @
#undef D0
#define D0 @
#undef D1
#define D1 @
#undef EULER
#define EULER @
#undef _A
#define _A @
#undef _B
#define _B @
#undef _C
#define _C @
#undef _N
#define _N @
#undef _U
#define _U @
#undef _L
#define _L @
#undef _P
#define _P @
#undef _S
#define _S @
#undef _X
#define _X @
#undef sq
#define sq(...) @
#undef bit
#define bit(...) @
#undef constrain
#define constrain(...) @
#undef radians
#define radians(...) @
#undef degrees
#define degrees(...) @
#undef lowByte
#define lowByte(...) @
#undef highByte
#define highByte(...) @
#undef bitRead
#define bitRead(...) @
#undef bitSet
#define bitSet(...) @
#undef bitClear
#define bitClear(...) @
#undef bitWrite
#define bitWrite(...) @
#undef word
#define word(...) @
#undef interrupts
#define interrupts(...) @
#undef noInterrupts
#define noInterrupts(...) @
#undef F
#define F(...) @
#undef _BV
#define _BV(...) @

// Unix, terminals and logging
#undef unix
#define unix @
#undef linux
#define linux @
#undef major
#define major @
#undef minor
#define minor @
#undef makedev
#define makedev @
#undef BSD
#define BSD @
#undef ECHO
#define ECHO @
#undef B50
#define B50 @
#undef B110
#define B110 @
#undef ERR
#define ERR @
#undef OK
#define OK @
#undef DEBUG
#define DEBUG @
#undef INFO
#define INFO @
#undef WARNING
#define WARNING @
#undef FATAL
#define FATAL @
#undef LOG_INFO
#define LOG_INFO @
#undef LOG_DEBUG
#define LOG_DEBUG @

// Qt
#undef signals
#define signals @
#undef slots
#define slots @
#undef emit
#define emit @
#undef foreach
#define foreach @
#undef forever
#define forever @
#undef Q_OBJECT
#define Q_OBJECT @

// Objective-C
#undef YES
#define YES @
#undef NO
#define NO @
#undef nil
#define nil @
#undef Nil
#define Nil @

// C math, and what predates std::min
#undef min
#define min(...) @
#undef max
#define max(...) @
#undef abs
#define abs(...) @
#undef round
#define round(...) @
#undef fabs
#define fabs(...) @

// macOS' AssertMacros.h, Unreal Engine
#undef check
#define check(...) @
#undef verify
#define verify(...) @
#undef require
#define require(...) @
#undef check_noerr
#define check_noerr(...) @
#undef verify_noerr
#define verify_noerr(...) @
#undef require_noerr
#define require_noerr(...) @
#undef TEXT
#define TEXT(...) @

// Logging and testing
#undef LOG
#define LOG(...) @
#undef CHECK
#define CHECK(...) @
#undef DCHECK
#define DCHECK(...) @
#undef ASSERT
#define ASSERT(...) @
#undef EXPECT
#define EXPECT(...) @
#undef VLOG
#define VLOG(...) @
#undef TEST
#define TEST(...) @
#undef REQUIRE
#define REQUIRE(...) @
#undef SECTION
#define SECTION(...) @

// curses
#undef clear
#define clear(...) @
#undef erase
#define erase(...) @
#undef move
#define move(...) @
#undef refresh
#define refresh(...) @
#undef timeout
#define timeout(...) @
#undef getch
#define getch(...) @
#undef addstr
#define addstr(...) @
#undef insch
#define insch(...) @
#undef delch
#define delch(...) @
#undef scroll
#define scroll(...) @
#undef box
#define box(...) @
#undef border
#define border(...) @

// Kernels, BSD and common habits
#undef offset_of
#define offset_of(...) @
#undef ARRAY_SIZE
#define ARRAY_SIZE(...) @
#undef container_of
#define container_of(...) @
#undef rindex
#define rindex(...) @
#undef bcopy
#define bcopy(...) @
#undef bzero
#define bzero(...) @
#undef bcmp
#define bcmp(...) @
